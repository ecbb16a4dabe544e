"""The settings of a checkpoint in the layout of transformers' ``HiggsAudioV2ForConditionalGeneration``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from sglang_omni.engines.options import DecoderSpec, WeightNames
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.models.frames.delay import DelayPattern, Repetition
from sglang_omni.models.higgs_audio_v2.decoders import decoder_config
from sglang_omni.preprocessing.text import read_json

MODEL_TYPE = "higgs_audio_v2"
HEAD = "audio_lm_head.weight"
_LAYERS = "model.layers"
# The authors' own, for what the checkpoint's generation_config.json leaves open.
_SAMPLING = {"temperature": 0.3, "top_k": 50, "top_p": 0.95}
_MAX_NEW_TOKENS = 1024


@dataclass(frozen=True)
class HiggsCheckpoint:
    """
    Attributes:
        decoder: Of rows of text and of codes; its tokens are the first group's codes.
        text_vocab_size: Of the text's tokens.
        pattern: Of its rows of codes.
        sampling: The checkpoint's own.
    """

    path: Path
    decoder: DecoderConfig
    text_vocab_size: int
    pattern: DelayPattern
    sampling: dict[str, Any]

    @classmethod
    def from_dir(cls, model_path: str | Path) -> HiggsCheckpoint:
        """
        Raises:
            ValueError: It is no such checkpoint, or one of an unsupported variant.
        """
        path = Path(model_path).expanduser()
        config, generation = read_json(path / "config.json"), read_json(path / "generation_config.json")
        if config.get("model_type") != MODEL_TYPE:
            raise ValueError(
                f"{path} is no checkpoint of Higgs Audio v2 in transformers' layout: model_type is "
                f"{config.get('model_type')!r}"
            )
        begin, end = int(config["audio_stream_bos_id"]), int(config["audio_stream_eos_id"])
        if not begin < end < int(config["codebook_size"]):
            raise ValueError(
                f"{path}: audio_stream_bos_id {begin} and audio_stream_eos_id {end} must be the last of "
                f"codebook_size {config['codebook_size']}"
            )
        window, most = generation.get("ras_win_len"), generation.get("ras_win_max_num_repeat")
        given = {name: generation.get(name) for name in _SAMPLING}
        if generation.get("do_sample") is False:
            given["temperature"] = 0.0
        return cls(
            path=path,
            decoder=replace(decoder_config(config), vocab_size=int(config["codebook_size"])),
            text_vocab_size=int(config["vocab_size"]),
            pattern=DelayPattern(
                int(config["num_codebooks"]),
                begin,
                end,
                Repetition(int(window), int(most)) if window and most else None,
            ),
            sampling={
                **_SAMPLING,
                **{name: value for name, value in given.items() if value is not None},
                "max_new_tokens": generation.get("max_new_tokens") or _MAX_NEW_TOKENS,
            },
        )

    def decoder_spec(self, strategy: FeedbackStrategy) -> DecoderSpec:
        """The decoder, whose input rows are the strategy's."""
        # No embeddings are read but the strategy's: the head's first part stands in for them.
        return DecoderSpec(
            model_path=self.path,
            config=self.decoder,
            weights=WeightNames(HEAD, _LAYERS, "model.norm.weight", HEAD),
            component=f"{_LAYERS}.",
            strategy=strategy,
            open_checkpoint=partial(_FirstHead, groups=self.pattern.num_code_groups),
        )


class _FirstHead(Checkpoint):
    """The tensors of the decoder, of whose common head only the first group's part is taken."""

    def __init__(self, *args: Any, groups: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._groups = groups

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        if name != HEAD:
            return super().take(name, shape)
        codes, hidden = shape
        return super().take(name, (self._groups * codes, hidden))[:codes]
