"""A function that listens: put your model in its place.

The factory (`load_ears`) runs once, in the process of its stage, and may load a model. The
function that it returns gets each request.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sglang_omni.proto import StagePayload
from sglang_omni.tasks import Transcript, TranscriptionRequest

SAMPLE_RATE = 16_000


def load_ears(threshold: float) -> Callable[[StagePayload], Any]:
    def listen(payload: StagePayload) -> Transcript:
        # float32 of shape (n,), decoded from any common format.
        samples = TranscriptionRequest.of(payload).samples(SAMPLE_RATE)
        seconds = len(samples) / SAMPLE_RATE
        loudness = float(np.sqrt(np.mean(np.square(samples))))
        text = "I hear something." if loudness > threshold else "I hear nothing."
        return Transcript(
            text=text, duration=seconds, segments=[{"start": 0.0, "end": seconds, "text": text}]
        )

    return listen
