"""What hears in a cascade under test: it says how long a recording is, as a word of the tiny checkpoints."""

from __future__ import annotations

from collections.abc import Callable

from sglang_omni.proto import StagePayload
from sglang_omni.tasks import Transcript, TranscriptionRequest

RATE = 16_000


def load_ears() -> Callable[[StagePayload], Transcript]:
    def listen(payload: StagePayload) -> Transcript:
        seconds = len(TranscriptionRequest.of(payload).samples(RATE)) / RATE
        text = f"t{round(seconds * 10)}"
        return Transcript(
            text=text,
            language="en",
            duration=seconds,
            segments=[{"start": 0.0, "end": seconds, "text": text}],
        )

    return listen
