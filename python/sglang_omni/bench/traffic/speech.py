"""Speech of a text, streamed: ``/v1/audio/speech``."""

from __future__ import annotations

import time
from typing import NamedTuple

from sglang_omni.bench.outcome import CallFailed, Outcome
from sglang_omni.bench.prompts import BenchPrompts
from sglang_omni.bench.traffic import Asking

_RATE = 24_000


class SpeechTraffic(NamedTuple):
    """Asks for raw PCM, whose length tells how long it plays."""

    asking: Asking
    prompts: BenchPrompts

    async def ask(self, index: int, outcomes: list[Outcome]) -> None:
        outcome = outcomes[-1]
        body = {
            "model": self.asking.model,
            "input": self.prompts(index).text,
            "response_format": "pcm",
            "stream_format": "audio",
            **({"voice": self.asking.voice} if self.asking.voice else {}),
            **self.asking.more,
        }
        async with self.asking.target.sound("/v1/audio/speech", body) as answer:
            rate = int(answer.headers.get("x-sample-rate", _RATE))
            async for piece in answer.content.iter_any():
                outcome.hears(time.perf_counter(), len(piece) / 2 / rate)
        if outcome.playback is None:
            raise CallFailed("no sound", "the answer is empty")
