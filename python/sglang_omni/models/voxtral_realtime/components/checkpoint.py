"""Voxtral Realtime's checkpoint, in the layout of transformers, which is published beside Mistral's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sglang_omni.model_runner.config import DecoderConfig, end_tokens, missing_field

if TYPE_CHECKING:
    from sglang_omni.engines.options import DecoderSpec
    from sglang_omni.model_runner.added_rows import RowSource

DECODER = "language_model."
_PROCESSOR = "processor_config.json"


@dataclass(frozen=True)
class VoxtralRealtimeCheckpoint:
    """A checkpoint's directory, read without its weights.

    Attributes:
        audio: ``audio_config``.
        text: The decoder.
        factor: Steps of the encoder that make a row.
        loudest: Above which features are cut off, as ``MelFilters`` has them.
        stored_dtype: The dtype that ``config.json`` names.
    """

    path: Path
    audio: Mapping[str, Any]
    text: DecoderConfig
    factor: int
    loudest: float
    stored_dtype: str | None

    @classmethod
    def from_dir(cls, path: str | Path) -> Self:
        """
        Raises:
            FileNotFoundError: A file is missing.
            ValueError: It is not Voxtral Realtime's, or lacks a field.
        """
        directory = Path(path)
        file = directory / "config.json"
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields.get("model_type") != "voxtral_realtime":
            raise ValueError(f"{file} has model_type {fields.get('model_type')!r}, not 'voxtral_realtime'")
        generation = directory / "generation_config.json"
        stored = json.loads(generation.read_text(encoding="utf-8")) if generation.exists() else {}
        try:
            text, audio = fields["text_config"], fields["audio_config"]
            tied = {"tie_word_embeddings": text.get("tie_word_embeddings", True)}
            ends = {"eos_token_id": end_tokens(stored, fields, text)}
            # A decoder of Mistral's is Llama's with a window.
            decoder = DecoderConfig.from_dict({**text, **tied, **ends}, "llama")
            if (window := text["sliding_window"]) is not None:
                layers = frozenset(range(decoder.num_hidden_layers))
                decoder = replace(decoder, sliding_window=int(window), sliding_layers=layers)
            factor = int(fields["downsample_factor"])
            if fields["audio_length_per_tok"] != 2 * factor:
                raise ValueError("audio_length_per_tok is not twice the downsample_factor")
        except KeyError as exc:
            raise ValueError(f"{file}: {missing_field(exc)}") from None
        except ValueError as exc:
            raise ValueError(f"{file}: {exc}") from None
        return cls(directory, audio, decoder, factor, _loudest(directory), fields.get("dtype"))

    def decoder_spec(self, rows: RowSource, delay: int) -> DecoderSpec:
        """The decoder, for engines.

        Args:
            rows: What is heard.
            delay: Tokens by which text follows sound.
        """
        from sglang_omni.engines.options import DecoderSpec, WeightNames
        from sglang_omni.models.voxtral_realtime.components.delayed import DelayedCheckpoint

        model = f"{DECODER}model."
        return DecoderSpec(
            model_path=self.path,
            config=self.text,
            weights=WeightNames(
                embed_tokens=f"{model}embed_tokens.weight",
                layers=f"{model}layers",
                norm=f"{model}norm.weight",
                lm_head=f"{DECODER}lm_head.weight",
            ),
            component=DECODER,
            added_rows=rows,
            open_checkpoint=partial(DelayedCheckpoint, delay, self.text.hidden_size),
        )


def _loudest(directory: Path) -> float:
    file = directory / _PROCESSOR
    if not file.exists():
        raise FileNotFoundError(
            f"{file} is missing: it says how sound is heard; download the checkpoint again"
        )
    loudest = json.loads(file.read_text(encoding="utf-8"))["feature_extractor"].get("global_log_mel_max")
    if loudest is None:
        raise ValueError(f"{file}: global_log_mel_max is missing: no sound could be heard as it comes")
    return float(loudest)
