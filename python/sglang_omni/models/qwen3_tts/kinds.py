"""The kinds of Qwen3-TTS models: what the voice of a text is from, and what a request may say of it.

Imports no torch: the server's process reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from sglang_omni.preprocessing.request_params import RequestParams, TaskParams

# A recording, one of the model's own speakers, or a description.
Kind = Literal["base", "custom_voice", "voice_design"]

MODEL_TYPE = "qwen3_tts"
# The one name of a voice that a request brings.
BROUGHT = "default"
_KINDS: tuple[Kind, ...] = ("base", "custom_voice", "voice_design")
# Its authors' code reads no instructions for this size of ``custom_voice``.
_WITHOUT_INSTRUCTIONS = "0b6"
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_new_tokens")
_DIALECT = "dialect"


def kind_of(config: Mapping[str, Any], path: str | Path) -> Kind:
    """
    Args:
        config: ``config.json``.
        path: Where it is from, for errors.

    Raises:
        ValueError: It is of no Qwen3-TTS model.
    """
    if config.get("model_type") != MODEL_TYPE:
        raise ValueError(f"{path} is no Qwen3-TTS checkpoint: model_type is {config.get('model_type')!r}")
    kind = config.get("tts_model_type")
    for known in _KINDS:
        if kind == known:
            return known
    raise ValueError(f"{path}: tts_model_type is {kind!r}; {', '.join(_KINDS)} are supported")


def voices_of(config: Mapping[str, Any], kind: Kind) -> tuple[str, ...]:
    """The names that ``voice`` may have, in lower case, the default first."""
    return tuple(map(str.lower, config["talker_config"]["spk_id"])) if kind == "custom_voice" else (BROUGHT,)


def languages_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of its languages, in lower case, without dialects: each is one of a speaker's."""
    names = map(str.lower, config["talker_config"].get("codec_language_id") or {})
    return tuple(name for name in names if _DIALECT not in name)


def request_params(config: Mapping[str, Any], kind: Kind) -> RequestParams:
    """What requests may set."""
    own: tuple[str, ...] = ("instructions",)
    if kind == "base":
        own = ("ref_audio", "ref_text")
    elif kind == "custom_voice" and config.get("tts_model_size") == _WITHOUT_INSTRUCTIONS:
        own = ()
    general = (*_SAMPLING, "voice", "language", *own)
    return {"speech": TaskParams(general=general, stages={"speak": _SAMPLING})}
