"""Recordings made at test time, and a transcription pipeline's two stages run on several at once."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scheduler_runs import WAIT_S, running

from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage

RATE = 16_000


def tones(seed: int, seconds: float) -> NDArray[np.float32]:
    """Another tone every quarter of a second, with noise; the loudest moment is the first."""
    random = np.random.default_rng(seed)
    at = np.arange(int(seconds * RATE)) / RATE
    samples = 0.05 * random.standard_normal(len(at))
    for start in range(0, len(at), RATE // 4):
        part = at[start : start + RATE // 4]
        samples[start : start + RATE // 4] += random.uniform(0.1, 0.5) * np.sin(
            2 * np.pi * random.uniform(100, 3000) * part
        )
    samples[0] = 1.5
    return (samples / 1.5).astype(np.float32)


def recording(samples: NDArray[np.float32], kind: str = "WAV") -> bytes:
    """A file that holds exactly these samples."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, RATE, format=kind, subtype="FLOAT" if kind == "WAV" else "PCM_16")
    return buffer.getvalue()


class Transcribed:
    """What became of one request: its chunks, and its result or its error."""

    def __init__(self) -> None:
        self.chunks: list[dict[str, Any]] = []
        self.result: dict[str, Any] = {}
        self.error: Exception | None = None

    @property
    def streamed(self) -> str:
        return "".join(chunk["text"] for chunk in self.chunks)

    @property
    def tokens(self) -> list[int]:
        return [token for segment in self.result["segments"] for token in segment["tokens"]]


def transcribed(
    preprocess: Any, scheduler: Any, files: Sequence[bytes], *, task: str = "transcription", **params: Any
) -> list[Transcribed]:
    """Runs files through the stages, all in the inbox before the first step."""
    for index, file in enumerate(files):
        request = OmniRequest({"audio": file}, {"stream": True, **params}, {"task": task})
        payload = preprocess(StagePayload(str(index), request, None))
        scheduler.inbox.put(IncomingMessage(str(index), "new_request", payload))
    found: dict[str, Transcribed] = defaultdict(Transcribed)
    over = 0
    with running(scheduler):
        while over < len(files):
            message = scheduler.outbox.get(timeout=WAIT_S)
            of = found[message.request_id]
            match message.type:
                case "stream":
                    of.chunks.append(message.data)
                case "result":
                    of.result = message.data.data
                case "error":
                    of.error = message.data
            over += message.type != "stream"
    return [found[str(index)] for index in range(len(files))]
