"""A microphone that is open all the time: frames of 20 ms in real time, with all that is said mixed in."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable

import numpy as np

from sglang_omni.bench.clips import RATE
from sglang_omni.bench.judge.sounds import Samples

FRAME_S = 0.02
_FRAME = round(FRAME_S * RATE)
_SILENCE = base64.b64encode(bytes(2 * _FRAME)).decode()


class Microphone:
    """
    Args:
        send: Takes each frame, 16-bit samples as base64.
        background: int16 of shape (n,) at ``RATE`` Hz that is there all the time, repeated; None for silence.
        is_open: False sends only the frames in which something is said.
    """

    def __init__(
        self, send: Callable[[str], Awaitable[None]], *, background: Samples | None, is_open: bool
    ) -> None:
        self._send = send
        self._background = background
        self._is_open = is_open
        self._began = time.perf_counter()
        # The frame that is being recorded.
        self._frame = 0
        self._tracks: list[tuple[int, Samples]] = []
        # Set while nothing that was said is still to be sent.
        self._all_sent = asyncio.Event()
        self._all_sent.set()

    async def run(self) -> None:
        """Sends until it is cancelled. A frame is sent at its end, as one that was recorded."""
        while True:
            await asyncio.sleep(self._time(self._frame + 1) - time.perf_counter())
            frame, self._frame = self._recorded(), self._frame + 1
            if frame is not None:
                await self._send(frame)
            if not self._tracks:
                self._all_sent.set()

    async def all_sent(self) -> None:
        """Waits until all that was said has been sent."""
        await self._all_sent.wait()

    def play(self, samples: Samples) -> tuple[float, float]:
        """Has a clip be said from the next frame on, beside what is said already.

        Args:
            samples: int16 of shape (n,) at ``RATE`` Hz.

        Returns:
            When its first and its last sample are said, by ``time.perf_counter``.
        """
        start = max(self._frame, int((time.perf_counter() - self._began) / FRAME_S)) + 1
        self._tracks.append((start, samples))
        self._all_sent.clear()
        return self._time(start), self._time(start) + len(samples) / RATE

    def _time(self, frame: int) -> float:
        return self._began + frame * FRAME_S

    def _recorded(self) -> str | None:
        """The frame that is being recorded, or None if nothing is to be sent."""
        sounding = [(start, samples) for start, samples in self._tracks if start <= self._frame]
        self._tracks = [
            (start, samples)
            for start, samples in self._tracks
            if (self._frame + 1 - start) * _FRAME < len(samples)
        ]
        if not sounding and self._background is None:
            return _SILENCE if self._is_open else None
        mixed = np.zeros(_FRAME, np.int32)
        for start, samples in sounding:
            piece = samples[(self._frame - start) * _FRAME :][:_FRAME]
            mixed[: len(piece)] += piece
        if self._background is not None:
            places = np.arange(self._frame * _FRAME, (self._frame + 1) * _FRAME)
            mixed += np.take(self._background, places, mode="wrap")
        clipped = np.clip(mixed, -(2**15), 2**15 - 1).astype("<i2")
        return base64.b64encode(clipped.tobytes()).decode()
