"""What the listeners of streamed answers hear, for the server's metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from sglang_omni.client import CompletionStreamChunk
from sglang_omni.scheduling.playback import Playback
from sglang_omni.serve.api.metrics import Metrics


@contextmanager
def listening(metrics: Metrics) -> Iterator[Playback]:
    """Follows the sound of a request that begins now. At the end, also an early one, it is counted."""
    playback = Playback(time.monotonic())
    try:
        yield playback
    finally:
        metrics.played(playback)


async def heard(
    metrics: Metrics, chunks: AsyncGenerator[CompletionStreamChunk, None]
) -> AsyncGenerator[CompletionStreamChunk, None]:
    """Yields the chunks of a request, and counts how their sound comes."""
    async with aclosing(chunks):
        with listening(metrics) as playback:
            async for chunk in chunks:
                playback.feed(time.monotonic(), chunk.audio_seconds)
                yield chunk
