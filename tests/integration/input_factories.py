"""Stages for the tests of input that comes while a request runs. Imported by worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.stream_scheduler import StreamScheduler, StreamSession


def first(folder: str) -> Callable[[StagePayload], dict[str, Any]]:
    """Hands requests on; one with ``hold`` once there is ``folder/go``."""

    def run(payload: StagePayload) -> dict[str, Any]:
        inputs = payload.request.inputs
        while inputs.get("hold") and not Path(folder, "go").exists():
            time.sleep(0.01)
        return {"start": inputs.get("start", 0)}

    return run


class _Sum(StreamSession):
    """Adds up what it is fed, and streams the sums; the result has all chunks' sizes and the process's id."""

    def __init__(self) -> None:
        self._total, self._sizes = 0.0, list[int]()

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        self._total = payload.data["start"]
        return iter(())

    def feed(self, data: Any) -> Iterator[Any]:
        if np.isnan(data).any():
            raise ZeroDivisionError("no number")
        self._total += float(data.sum())
        self._sizes.append(len(data))
        yield {"text": f"{self._total:g} "}

    def end(self) -> Iterator[Any]:
        return iter(())

    def result(self) -> dict[str, Any]:
        return {"text": f"{self._total:g}", "sizes": self._sizes, "pid": os.getpid()}


def adder() -> StreamScheduler:
    return StreamScheduler(
        _Sum,
        expects_stream=lambda payload: True,
        wants_chunks=lambda payload: bool(payload.request.params.get("stream")),
    )


class _Ears(StreamSession):
    """Says how many samples each chunk has, once per chunk, and in the end how many there were in all."""

    def __init__(self) -> None:
        self._params: dict[str, Any] = {}
        self._seconds, self._rate, self._sizes = 0.0, 0, list[int]()

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        self._params, self._rate = dict(payload.request.params), payload.request.inputs["sample_rate"]
        return iter(())

    def feed(self, data: Any) -> Iterator[Any]:
        self._sizes.append(len(data))
        segment = {"start": self._seconds, "end": self._seconds + len(data) / self._rate, "text": "heard"}
        self._seconds += len(data) / self._rate
        yield {"text": f"+{len(data)}", "segments": [segment]}

    def end(self) -> Iterator[Any]:
        return iter(())

    def result(self) -> dict[str, Any]:
        given = {name: self._params[name] for name in ("language", "prompt") if name in self._params}
        text = f"{sum(self._sizes)} samples at {self._rate} Hz {given or ''}".strip()
        return {"text": text, "duration": self._seconds, "language": "en"}


def ears() -> StreamScheduler:
    return StreamScheduler(
        _Ears,
        expects_stream=lambda payload: True,
        wants_chunks=lambda payload: bool(payload.request.params.get("stream")),
    )
