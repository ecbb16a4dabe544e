"""Checks that what a pipeline returns can answer a request: a server's routes have no use for anything else.

The fields are those of ``sglang_omni.proto.tasks``. An error is for the author of the pipeline: it names
the stage, the field, and what is expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from sglang_omni.generation.answer import GenerateChunk, is_merged
from sglang_omni.generation.errors import ClientError
from sglang_omni.proto import shortened

# Field -> the types that it may have, and their description. None stands for no value.
_FIELDS: dict[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "a str"),
    "modality": ((str,), "a str"),
    "sample_rate": ((int, Integral), "an int, in Hz"),
    "finish_reason": ((str,), "a str, such as 'stop' or 'length'"),
    "usage": ((dict, Mapping), "a dict of token counts: prompt_tokens and completion_tokens"),
    "reasoning": ((str,), "a str"),
    "spoken_text": ((str,), "a str"),
    "input_transcript": ((str,), "a str"),
    "language": ((str,), "a str"),
    "duration": ((float, int, Real), "a number of seconds"),
    "segments": ((list, tuple), "a list of dicts with start, end and text"),
    "words": ((list, tuple), "a list of dicts with word, start and end"),
    "tool_calls": ((list, tuple), "a list of dicts with index, id, name and arguments"),
    "logprobs": ((list, tuple), "a list of dicts with token, token_id and logprob"),
    "prompt_logprobs": ((list, tuple), "a list of dicts with token, token_id and logprob"),
}
_SAMPLES = "float samples in [-1, 1] of shape (n,), an array or a tensor"
_SOUND = ("audio_data", "audio")
# Lists of dicts, and the keys that each of the dicts has.
_LISTED: dict[str, frozenset[str]] = {
    "segments": frozenset(("start", "end", "text")),
    "words": frozenset(("word", "start", "end")),
    "tool_calls": frozenset(("index",)),
    "logprobs": frozenset(("token", "token_id", "logprob")),
    "prompt_logprobs": frozenset(("token", "token_id", "logprob")),
}


class _Need(NamedTuple):
    """What a task's answer cannot do without: one of these fields, and their description."""

    fields: tuple[str, ...]
    description: str


_TEXT_OR_SOUND = _Need(
    ("text", "audio_data", "audio", "tool_calls", "reasoning", "token_ids", "codes"),
    'an answer with "text", as in TextResult(text=...), or with sound, as in '
    "AudioResult(audio_data=..., sample_rate=...)",
)
_TRANSCRIPT = _Need(("text",), 'a transcript with "text", as in Transcript(text=...)')
_NEEDS = {
    "chat": _TEXT_OR_SOUND,
    "completion": _TEXT_OR_SOUND,
    "speech": _Need(
        ("audio_data", "audio"),
        "sound, as in AudioResult(audio_data=..., sample_rate=...) with float samples",
    ),
    "transcription": _TRANSCRIPT,
    "translation": _TRANSCRIPT,
}


def check_fields(data: Any, *, stage: str | None) -> None:
    """Checks the fields of a chunk, or of one stage's result.

    Args:
        stage: The stage that it is from, or None if it is not known.

    Raises:
        ClientError: A field has a value that it cannot have.
    """
    if not isinstance(data, (dict, Mapping)):
        return
    for name, value in data.items():
        if value is None:
            continue
        if (expected := _FIELDS.get(name)) is not None:
            kinds, description = expected
            if not isinstance(value, kinds) or (name in _LISTED and not _is_listed(value, _LISTED[name])):
                raise _wrong(stage, name, value, description)
        if name == "sample_rate" and value <= 0:
            raise _wrong(stage, "sample_rate", value, "an int above 0, in Hz")
        if name in _SOUND:
            _check_sound(stage, name, value)


def check_answer(task: str, result: Any, streamed: set[str], *, stage: str | None = None) -> None:
    """Checks a result's fields, and that with what was streamed before it answers a request of ``task``.

    Args:
        task: The request's.
        result: The pipeline's unchanged result.
        streamed: The fields that the request's chunks had.
        stage: The terminal stage, for the error; None if it is not known.

    Raises:
        ClientError: It does not; the text names the stage, what it returned, and what is expected.
    """
    parts: Mapping[str | None, Any] = result if is_merged(result) else {stage: result}
    for name, part in parts.items():
        check_fields(part, stage=name)
    need = _NEEDS.get(task)
    if need is None or not streamed.isdisjoint(need.fields) or isinstance(result, GenerateChunk):
        return
    for part in parts.values():
        if isinstance(part, Mapping):
            if any(part.get(name) is not None for name in need.fields):
                return
        elif "text" in need.fields and isinstance(part, str | int):
            return
    where = "the pipeline" if stage is None else f"stage {stage!r}"
    raise ClientError(f"{where} returned {_described(result)}; {task} needs {need.description}")


def _is_listed(values: Any, keys: frozenset[str]) -> bool:
    return all(isinstance(each, Mapping) and each.keys() >= keys for each in values)


def _described(result: Any) -> str:
    if isinstance(result, Mapping):
        return f"a dict with {', '.join(map(repr, result)) or 'nothing in it'}"
    if result is None or isinstance(result, str | int | float):
        return shortened(repr(result))
    return f"a value of type {type(result).__name__}"


def _check_sound(stage: str | None, name: str, sound: Any) -> None:
    # Integers would be clipped to full scale: noise.
    if isinstance(sound, np.ndarray):
        usable = sound.dtype.kind == "f"
    elif hasattr(sound, "detach"):
        usable = sound.dtype.is_floating_point
    else:
        usable = isinstance(sound, list | tuple | bytes | bytearray | memoryview)
    if not usable:
        raise _wrong(stage, name, sound, _SAMPLES)


def _wrong(stage: str | None, name: str, value: Any, expected: str) -> ClientError:
    where = "the pipeline" if stage is None else f"stage {stage!r}"
    dtype = getattr(value, "dtype", None)
    found = f"an array of {dtype}" if dtype is not None else shortened(f"{type(value).__name__} {value!r}")
    return ClientError(f"{where} returned {name!r} as {found}; it must be {expected}")
