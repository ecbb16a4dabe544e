"""Qwen3-ASR's checkpoint, in the layout of its authors or in that of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sglang_omni.model_runner.config import DecoderConfig, end_tokens

if TYPE_CHECKING:
    import torch

    from sglang_omni.engines.options import DecoderSpec

# The end of a text, and of a turn.
_ENDS = (151643, 151645)
# Fields that only transformers' own class of the encoder has.
_FOREIGN = ("model_type", "max_position_embeddings")
# transformers keeps the encoder's last two layers apart, by these names.
_APART = {"proj1": "linear_1", "proj2": "linear_2"}


@dataclass(frozen=True)
class Qwen3ASRCheckpoint:
    """A checkpoint's directory, read without its weights.

    Attributes:
        audio: ``audio_config``.
        text: The decoder.
        tower, projector: Prefixes of the names of the encoder's tensors, and of those of its last two layers.
        decoder: The prefix of the names of the decoder's.
        head: The name of the output layer's weights.
        stored_dtype: The dtype that ``config.json`` names.
    """

    path: Path
    audio: Mapping[str, Any]
    text: DecoderConfig
    tower: str
    projector: str
    decoder: str
    head: str
    stored_dtype: str | None

    @classmethod
    def from_dir(cls, path: str | Path) -> Self:
        """
        Raises:
            FileNotFoundError: ``config.json`` is missing.
            ValueError: It is not Qwen3-ASR's, or lacks a field.
        """
        directory = Path(path)
        file = directory / "config.json"
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields.get("model_type") != "qwen3_asr":
            raise ValueError(f"{file} has model_type {fields.get('model_type')!r}, not 'qwen3_asr'")
        if any("TokenClassification" in name for name in fields.get("architectures") or ()):
            raise ValueError(f"{file} is that of a forced aligner, which transcribes nothing")
        own = "thinker_config" in fields
        parts = fields["thinker_config"] if own else fields
        generation = directory / "generation_config.json"
        stored = json.loads(generation.read_text(encoding="utf-8")) if generation.exists() else {}
        try:
            ends = end_tokens(stored, fields, parts, parts["text_config"]) or _ENDS
            text = _decoder(parts["text_config"], parts, ends)
            audio = {name: value for name, value in parts["audio_config"].items() if name not in _FOREIGN}
        except (KeyError, ValueError) as exc:
            raise ValueError(f"{file}: {exc}") from None
        dtype = fields.get("dtype") or fields.get("torch_dtype") or parts.get("dtype")
        if own:
            tower = "thinker.audio_tower."
            return cls(
                directory, audio, text, tower, tower, "thinker.model.", "thinker.lm_head.weight", dtype
            )
        return cls(
            directory,
            audio,
            text,
            "model.audio_tower.",
            "model.multi_modal_projector.",
            "model.language_model.",
            "lm_head.weight",
            dtype,
        )

    @property
    def chunk_frames(self) -> int:
        """Frames that the encoder's convolutions take at once: 100 are a second."""
        return 2 * int(self.audio.get("n_window", 50))

    def decoder_spec(self) -> DecoderSpec:
        """The decoder, for engines."""
        from sglang_omni.engines.options import DecoderSpec, WeightNames

        return DecoderSpec(
            model_path=self.path,
            config=self.text,
            weights=WeightNames(
                embed_tokens=f"{self.decoder}embed_tokens.weight",
                layers=f"{self.decoder}layers",
                norm=f"{self.decoder}norm.weight",
                lm_head=self.head,
            ),
            component=self.decoder,
            takes_media=True,
        )

    def load_tower(self, dtype: torch.dtype, device: str) -> Any:
        """The audio encoder with its weights.

        Raises:
            FileNotFoundError, ValueError: A file or tensor is missing, misshapen or unknown.
        """
        from sglang_omni.model_runner.loader import Checkpoint, weights_on_meta
        from sglang_omni.models.omni.audio_tower import audio_tower

        with weights_on_meta():
            tower = audio_tower(self.audio)
        weights = Checkpoint(self.path, dtype, self.tower)
        tensors = {
            name: weights.take(self.stored_name(name), tensor.shape)
            for name, tensor in tower.state_dict().items()
        }
        weights.finish()
        tower.load_state_dict(tensors, strict=True, assign=True)
        return tower.requires_grad_(False).eval().to(device)

    def stored_name(self, name: str) -> str:
        """The checkpoint's name of one of the audio encoder's tensors."""
        layer, _, rest = name.partition(".")
        if layer in _APART and self.projector != self.tower:
            return f"{self.projector}{_APART[layer]}.{rest}"
        return self.tower + name


def _decoder(text: Mapping[str, Any], parts: Mapping[str, Any], ends: Sequence[int]) -> DecoderConfig:
    fields = {**text, "eos_token_id": ends}
    # Positions on three axes, which the authors' layout names, are the same on all of them without pictures.
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.get(name)
        if scaling:
            fields[name] = {key: value for key, value in scaling.items() if "mrope" not in key}
            fields[name].pop("interleaved", None)
    fields.setdefault("tie_word_embeddings", parts.get("tie_word_embeddings", True))
    return DecoderConfig.from_dict(fields, "qwen3")
