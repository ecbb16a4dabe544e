"""Settings of a Qwen3-Omni checkpoint, from ``config.json`` and ``generation_config.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

MODEL_TYPE = "qwen3_omni_moe"

# The codec's rate in Hz, which no file of a checkpoint has.
SAMPLE_RATE = 24_000


@dataclass(frozen=True)
class TokenIds:
    """Token ids in the thinker's vocabulary; the defaults are those of transformers."""

    im_start: int = 151644
    im_end: int = 151645
    user: int = 872
    assistant: int = 77091
    audio: int = 151646
    image: int = 151655
    video: int = 151656
    vision_start: int = 151652
    audio_start: int = 151647
    tts_pad: int = 151671
    tts_bos: int = 151672
    tts_eos: int = 151673

    @property
    def media(self) -> frozenset[int]:
        """Placeholders of media, whose input rows come from encoders."""
        return frozenset((self.audio, self.image, self.video))


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


@dataclass(frozen=True)
class Qwen3OmniCheckpoint:
    """A Qwen3-Omni checkpoint's directory and settings, read without importing torch.

    Attributes:
        config: The whole ``config.json``, of which components read their own parts.
        generation: The whole ``generation_config.json``; empty if there is none.
        tokens: Special tokens of the thinker.
        talker: None if the checkpoint answers in text only.
    """

    path: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tokens: TokenIds
    talker: TalkerSettings | None

    @classmethod
    def from_dir(cls, model_path: str | Path) -> Qwen3OmniCheckpoint:
        """
        Raises:
            FileNotFoundError: There is no ``config.json``.
            ValueError: The checkpoint is that of another model, or incomplete.
        """
        directory = Path(model_path).expanduser()
        path = directory / "config.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{directory} is no Qwen3-Omni checkpoint: it has no config.json; give the directory that "
                "holds it beside the safetensors files"
            )
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("model_type") != MODEL_TYPE:
            raise ValueError(
                f"{path} is of model_type {config.get('model_type')!r}; Qwen3-Omni's is {MODEL_TYPE!r}"
            )
        thinker = _part(config, "thinker_config", path)
        _part(thinker, "text_config", path)
        generation_path = directory / "generation_config.json"
        generation = (
            json.loads(generation_path.read_text(encoding="utf-8")) if generation_path.is_file() else {}
        )
        return cls(directory, config, generation, _token_ids(config, thinker), _talker(config, path))

    @property
    def thinker_config(self) -> Mapping[str, Any]:
        return self.config["thinker_config"]

    @cached_property
    def total_upsample(self) -> int:
        """Samples of one codec frame."""
        code2wav = self.config.get("code2wav_config") or {}
        rates = (*code2wav.get("upsample_rates", (8, 5, 4, 3)), *code2wav.get("upsampling_ratios", (2, 2)))
        return math.prod(rates)

    def require_talker(self) -> TalkerSettings:
        """
        Raises:
            ValueError: The checkpoint has no talker.
        """
        if self.talker is None:
            raise ValueError(
                f"{self.path} answers in text alone: its config.json has enable_audio_output false or no "
                "talker_config; serve it with the text pipeline"
            )
        return self.talker


def _part(config: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    part = config.get(name)
    if not isinstance(part, Mapping):
        raise ValueError(f"{path} has no {name}: it is no complete Qwen3-Omni checkpoint")
    return part


def _token_ids(config: Mapping[str, Any], thinker: Mapping[str, Any]) -> TokenIds:
    given = {**thinker, **config}
    names = TokenIds.__dataclass_fields__
    return TokenIds(
        **{name: int(given[key]) for name in names if given.get(key := f"{name}_token_id") is not None}
    )


def _talker(config: Mapping[str, Any], path: Path) -> TalkerSettings | None:
    if not config.get("enable_audio_output", True) or not config.get("talker_config"):
        return None
    talker = _part(config, "talker_config", path)
    text = _part(talker, "text_config", path)
    _part(config, "code2wav_config", path)
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
