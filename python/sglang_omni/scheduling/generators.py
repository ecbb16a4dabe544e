"""Stages that are generator functions: their chunks go out as they come, and make up the result."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sglang_omni.proto import StagePayload
from sglang_omni.proto.tasks import later
from sglang_omni.scheduling.stream_scheduler import StreamScheduler, StreamSession


def is_generator(function: Callable[..., Any]) -> bool:
    """True for a generator function, and for an object that is called as one."""
    called = function if inspect.isroutine(function) else type(function).__call__
    return inspect.isgeneratorfunction(called)


def generator_scheduler(
    function: Callable[[StagePayload], Iterator[Any]], *, feeds_stages: bool
) -> StreamScheduler:
    """Runs a generator function for each request; the requests take turns, one chunk each.

    Args:
        function: Gets a request's payload and yields chunks, such as ``TextChunk`` and ``AudioChunk``, or
            None to let other requests go on. What it returns, if anything, is the result in place of the
            joined chunks.
        feeds_stages: True if other stages take the chunks; else they go to callers who stream.
    """
    return StreamScheduler(
        lambda: GeneratorSession(function),
        expects_stream=lambda payload: False,
        wants_chunks=lambda payload: feeds_stages or bool(payload.request.params.get("stream")),
    )


class GeneratorSession(StreamSession):
    """One request of a generator function."""

    def __init__(self, function: Callable[[StagePayload], Iterator[Any]]) -> None:
        self._function = function
        self._chunks: list[Any] = []
        self._returned: Any = None

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        chunks = self._function(payload)
        while True:
            try:
                chunk = next(chunks)
            except StopIteration as end:
                self._returned = end.value
                return
            if chunk is not None:
                self._chunks.append(chunk)
            yield chunk

    def result(self) -> Any:
        """
        Raises:
            TypeError: The function returned nothing, and its chunks cannot be joined.
            ValueError: The sample rate changed between chunks.
        """
        if isinstance(self._returned, StagePayload):
            return self._returned.data
        return join_chunks(self._chunks) if self._returned is None else self._returned


def join_chunks(chunks: list[Any]) -> dict[str, Any]:
    """The whole answer of chunks: texts and sounds one after another, lists joined, of other fields the last.

    The times of words then count from where the first chunk's sound begins.

    Args:
        chunks: Dicts as in ``sglang_omni.proto.tasks``, or texts.

    Raises:
        TypeError: A chunk is neither.
        ValueError: The sample rate changed.
    """
    whole: dict[str, Any] = {}
    sound: list[Any] = []
    count = 0  # samples of the chunks before
    for chunk in chunks:
        fields: Mapping[str, Any] = {"text": chunk} if isinstance(chunk, str) else chunk
        if not isinstance(fields, Mapping):
            raise TypeError(
                f"a generator must yield texts or dicts such as TextChunk and AudioChunk, got "
                f"{type(chunk).__name__}"
            )
        for name, value in fields.items():
            if name == "audio_data":
                sound.append(value)
            elif name == "words":
                seconds = count / whole["sample_rate"] if count else 0.0
                whole[name] = whole.get(name, []) + later(value, seconds)
            elif name in ("text", "reasoning", "spoken_text"):
                whole[name] = whole.get(name, "") + value
            elif isinstance(value, list):
                whole[name] = whole.get(name, []) + value
            elif name == "sample_rate" and whole.get(name, value) != value:
                raise ValueError(f"sample_rate changed from {whole[name]} to {value} between chunks")
            else:
                whole[name] = value
        if (piece := fields.get("audio_data")) is not None:
            count += math.prod(piece.shape) if hasattr(piece, "shape") else len(piece)
    if sound:
        whole["audio_data"] = _joined_sound(sound)
    return whole


def _joined_sound(pieces: list[Any]) -> Any:
    if all(hasattr(piece, "detach") for piece in pieces):
        import torch

        return torch.cat([piece.flatten() for piece in pieces])
    import numpy as np

    return np.concatenate([np.asarray(piece).reshape(-1) for piece in pieces])
