"""What the listeners of streamed answers hear, for the server's metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from sglang_omni.client import CompletionStreamChunk
from sglang_omni.scheduling.playback import Playback
from sglang_omni.serve.metrics import Metrics


@contextmanager
def listening(metrics: Metrics) -> Iterator[Playback]:
    """Follows the sound of a request that begins now. At the end, also an early one, it is counted."""
    playback = Playback(time.monotonic())
    try:
        yield playback
    finally:
        metrics.played(playback)


async def heard(
    metrics: Metrics, parts: AsyncGenerator[tuple[int, CompletionStreamChunk], None]
) -> AsyncGenerator[tuple[int, CompletionStreamChunk], None]:
    """Yields the parts of a request's answers, and counts how the sound of each comes."""
    began = time.monotonic()
    playbacks: dict[int, Playback] = {}
    async with aclosing(parts):
        try:
            async for index, chunk in parts:
                if chunk.audio_seconds:
                    playback = playbacks.setdefault(index, Playback(began))
                    playback.feed(time.monotonic(), chunk.audio_seconds)
                yield index, chunk
        finally:
            for playback in playbacks.values():
                metrics.played(playback)
