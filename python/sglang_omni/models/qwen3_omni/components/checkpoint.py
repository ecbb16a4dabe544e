"""Settings of a Qwen3-Omni checkpoint, from ``config.json`` and ``generation_config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from sglang_omni.models.omni.checkpoint import MediaCheckpoint, MediaTokens

# The codec's rate in Hz, which no file of a checkpoint has.
SAMPLE_RATE = 24_000


@dataclass(frozen=True)
class TokenIds(MediaTokens):
    """Token ids in the thinker's vocabulary; the defaults are those of transformers."""

    im_start: int = 151644
    im_end: int = 151645
    user: int = 872
    assistant: int = 77091
    tts_pad: int = 151671
    tts_bos: int = 151672
    tts_eos: int = 151673


@dataclass(frozen=True)
class CodecIds:
    """Special ids in the talker's vocabulary: its last 1024 ids, after the codec's codes."""

    nothink: int
    think_bos: int
    think_eos: int
    pad: int
    bos: int
    eos: int


@dataclass(frozen=True)
class TalkerSettings:
    """Settings of a checkpoint's talker.

    Attributes:
        accept_hidden_layer: The talker reads ``hidden_states[accept_hidden_layer]`` of the thinker's media
            tokens.
        num_code_groups: Codes of a frame.
        vocab_size: Size of the talker's vocabulary, special ids included.
        codec: The special ids.
        speakers: Ids in the talker's vocabulary, by lower-case name.
    """

    accept_hidden_layer: int
    num_code_groups: int
    vocab_size: int
    codec: CodecIds
    speakers: Mapping[str, int]

    @property
    def suppressed(self) -> tuple[int, ...]:
        """Special ids that the talker must not choose: all but the end."""
        return tuple(i for i in range(self.vocab_size - 1024, self.vocab_size) if i != self.codec.eos)


class Qwen3OmniCheckpoint(MediaCheckpoint[TokenIds, TalkerSettings]):
    """A Qwen3-Omni checkpoint's directory and settings."""

    model = "Qwen3-Omni"
    model_type = "qwen3_omni_moe"
    thinker_parts = ("text_config",)
    # "vLLM Usage" in the README of github.com/QwenLM/Qwen3-Omni, for -Instruct and -Thinking alike.
    recommended_sampling: ClassVar[Mapping[str, float]] = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    # Defaults of transformers' ``generate`` for this model.
    talker_defaults: ClassVar[Mapping[str, float]] = {
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.05,
        "max_new_tokens": 4096,
    }
    default_voice = "ethan"

    @classmethod
    def _tokens_of(cls, config: Mapping[str, Any]) -> TokenIds:
        given = {**config["thinker_config"], **config}
        names = TokenIds.__dataclass_fields__
        return TokenIds(
            **{name: int(given[key]) for name in names if given.get(key := f"{name}_token_id") is not None}
        )

    @classmethod
    def _talker_of(cls, config: Mapping[str, Any], path: Path) -> TalkerSettings:
        talker = cls._part(config, "talker_config", path)
        text = cls._part(talker, "text_config", path)
        cls._part(config, "code2wav_config", path)
        codec = {name: f"codec_{name}_id" for name in CodecIds.__dataclass_fields__}
        codec["eos"] = "codec_eos_token_id"
        required = (*codec.values(), "speaker_id", "accept_hidden_layer", "num_code_groups")
        if missing := [name for name in required if talker.get(name) is None]:
            raise ValueError(f"{path}: talker_config lacks {', '.join(missing)}")
        return TalkerSettings(
            accept_hidden_layer=int(talker["accept_hidden_layer"]),
            num_code_groups=int(talker["num_code_groups"]),
            vocab_size=int(text["vocab_size"]),
            codec=CodecIds(**{name: int(talker[key]) for name, key in codec.items()}),
            speakers={str(name).lower(): int(token) for name, token in talker["speaker_id"].items()},
        )

    @property
    def voices(self) -> Mapping[str, int]:
        """Ids in the talker's vocabulary, by lower-case name."""
        return self.require_talker().speakers

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an answer: that of a turn, as for transformers' ``generate``, and those named."""
        return tuple(dict.fromkeys((self.tokens.im_end, *super().ends)))

    @cached_property
    def total_upsample(self) -> int:
        """Samples of one codec frame."""
        code2wav = self.config.get("code2wav_config") or {}
        rates = (*code2wav.get("upsample_rates", (8, 5, 4, 3)), *code2wav.get("upsampling_ratios", (2, 2)))
        return math.prod(rates)
