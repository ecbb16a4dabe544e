"""What the listeners of streamed answers hear, for the server's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sglang_omni.scheduling.playback import Playback
from sglang_omni.serve.metrics import Metrics


@contextmanager
def listening(metrics: Metrics) -> Iterator[Callable[[int, float], None]]:
    """Follows the sound of a request's answers from now on. At the end, also an early one, it is counted.

    Yields:
        ``play(index, seconds)``: so much new sound of one answer is sent now.
    """
    began = time.monotonic()
    playbacks: dict[int, Playback] = {}

    def play(index: int, seconds: float) -> None:
        if index not in playbacks:
            playbacks[index] = Playback(began)
        playbacks[index].feed(time.monotonic(), seconds)

    try:
        yield play
    finally:
        for playback in playbacks.values():
            metrics.played(playback)
