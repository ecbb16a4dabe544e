"""Types and ranges of request parameters, by name; a name means the same in every place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sglang_omni.proto import RequestError
from sglang_omni.proto.limits import (
    MAX_BIAS,
    MAX_GRAMMAR_LENGTH,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKENS,
    MAX_STOPS,
)

MAX_NAME_LENGTH = 1024
MAX_TEMPERATURE = 2
MAX_REPETITION_PENALTY = 2
MAX_PENALTY = 2

# Description of the valid values, check of the type, check of a value of that type.
_Kind = tuple[str, Callable[[Any], bool], Callable[[Any], bool]]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _number(least: float, most: float) -> _Kind:
    return f"a number from {least} to {most}", _is_number, lambda value: least <= value <= most


def _positive(most: float) -> _Kind:
    return f"a number above 0 and at most {most}", _is_number, lambda value: 0 < value <= most


def _integer(least: int, most: int) -> _Kind:
    return f"a whole number from {least} to {most}", _is_integer, lambda value: least <= value <= most


def _is_list_of(kind: Callable[[Any], bool], most: int) -> Callable[[Any], bool]:
    # The length first: checking the items of a long list takes long.
    return lambda value: isinstance(value, list | tuple) and (len(value) > most or all(map(kind, value)))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_stops(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return len(texts) <= MAX_STOPS and all(0 < len(text) <= MAX_STOP_LENGTH for text in texts)


def _is_token_id(key: Any) -> bool:
    # In JSON, the names in an object are texts.
    return _is_integer(key) or (_is_text(key) and key.isdecimal() and key.isascii() and len(key) < 20)


def _is_bias(value: Any) -> bool:
    return isinstance(value, Mapping) and (
        len(value) > MAX_LOGIT_BIAS or all(_is_token_id(key) and _is_number(value[key]) for key in value)
    )


def _are_biases_in_range(value: Any) -> bool:
    return len(value) <= MAX_LOGIT_BIAS and all(
        int(key) >= 0 and -MAX_BIAS <= bias <= MAX_BIAS for key, bias in value.items()
    )


_are_texts = _is_list_of(_is_text, MAX_STOPS)
_NAME: _Kind = (
    f"a text of at most {MAX_NAME_LENGTH} characters",
    _is_text,
    lambda value: len(value) <= MAX_NAME_LENGTH,
)
_FLAG: _Kind = ("true or false", lambda value: isinstance(value, bool), lambda value: True)

_GRAMMAR: _Kind = (
    f"a text of 1 to {MAX_GRAMMAR_LENGTH} characters",
    _is_text,
    lambda value: 0 < len(value) <= MAX_GRAMMAR_LENGTH,
)

_SAMPLING: dict[str, _Kind] = {
    "temperature": _number(0, MAX_TEMPERATURE),
    "top_p": _positive(1),
    "top_k": _integer(-1, 2**31 - 1),
    "min_p": _number(0, 1),
    "repetition_penalty": _positive(MAX_REPETITION_PENALTY),
    "presence_penalty": _number(-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": _number(-MAX_PENALTY, MAX_PENALTY),
    "seed": _integer(-(2**63), 2**63 - 1),
    "stop": (
        f"a text of 1 to {MAX_STOP_LENGTH} characters, or at most {MAX_STOPS} of them",
        lambda value: isinstance(value, str) or _are_texts(value),
        _are_stops,
    ),
    "stop_token_ids": (
        f"at most {MAX_STOP_TOKENS} whole numbers from 0",
        _is_list_of(_is_integer, MAX_STOP_TOKENS),
        lambda value: len(value) <= MAX_STOP_TOKENS and all(0 <= token < 2**63 for token in value),
    ),
    "max_new_tokens": _integer(1, 2**31 - 1),
    "ignore_eos": _FLAG,
}
# Stages check their other parameters themselves.
_KINDS: Mapping[str, _Kind] = {
    **_SAMPLING,
    "logit_bias": (
        f"an object of at most {MAX_LOGIT_BIAS} token ids with numbers from -{MAX_BIAS} to {MAX_BIAS}",
        _is_bias,
        _are_biases_in_range,
    ),
    "logprobs": _integer(0, MAX_LOGPROBS),
    "prompt_logprobs": _integer(0, MAX_LOGPROBS),
    "json_schema": _GRAMMAR,
    "regex": _GRAMMAR,
    "ebnf": _GRAMMAR,
    "structural_tag": _GRAMMAR,
    **{f"talker_{name}": kind for name, kind in _SAMPLING.items()},
    "voice": _NAME,
    "speaker": _NAME,
    "language": _NAME,
    "prompt": ("a text", _is_text, lambda value: True),
    "speed": _number(0.25, 4),
    "video_fps": _number(0.001, 1000),
    "use_audio_in_video": _FLAG,
    "word_timestamps": _FLAG,
    "add_generation_prompt": _FLAG,
    "continue_final_message": _FLAG,
    "parallel_tool_calls": _FLAG,
    "reasoning_effort": _NAME,
}


def check_value(name: str, value: Any, param: str) -> None:
    """
    Args:
        name: The parameter; unknown names are not checked.
        value: None stands for no value.
        param: The parameter's full name in the request.

    Raises:
        RequestError: The parameter cannot have this value.
    """
    if value is None or name not in _KINDS:
        return
    expected, has_type, is_good = _KINDS[name]
    if not has_type(value):
        raise RequestError(f"{param}: must be {expected}", param=param, code="invalid_type")
    if not is_good(value):
        raise RequestError(f"{param}: must be {expected}", param=param, code="invalid_value")
