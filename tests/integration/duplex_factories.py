"""An echo that listens while it speaks, for tests of duplex sessions. Imported by worker processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np

from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.scheduling.stream_scheduler import StreamScheduler, StreamSession

# Samples by which a test has the stage fail, and die.
TOO_SLOW, KILL, LOUD = 0.75, 0.5, 0.25


class _Echo(StreamSession):
    """Speaks what it hears at half its loudness; of a ``LOUD`` chunk, ten seconds."""

    def __init__(self) -> None:
        self._rate = 0

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        self._rate = payload.request.inputs["sample_rate"]
        assert payload.request.metadata["task"] == "duplex"
        return iter(())

    def feed(self, data: Any) -> Iterator[Any]:
        first = round(float(data[0]), 2)
        if first == TOO_SLOW:
            raise RequestError("the session is behind; open another one", code="session_too_slow")
        if first == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"text": f"{len(data)} "}
        for _ in range(125 if first == LOUD else 1):
            sound = (np.resize(data, self._rate * 8 // 100) if first == LOUD else data) / 2
            yield {"audio_data": sound, "sample_rate": self._rate, "modality": "audio"}

    def end(self) -> Iterator[Any]:
        return iter(())

    def result(self) -> dict[str, Any]:
        return {"text": "", "finish_reason": "stop"}


def echo() -> StreamScheduler:
    return StreamScheduler(
        _Echo,
        expects_stream=lambda payload: True,
        wants_chunks=lambda payload: bool(payload.request.params.get("stream")),
    )
