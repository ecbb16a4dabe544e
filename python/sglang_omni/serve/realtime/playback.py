"""The sound on its way to a call's speaker: handed out in real time, so that what was heard is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_omni.generation.audio import Resampler
from sglang_omni.generation.samples import pcm16
from sglang_omni.serve.realtime.listener import Played
from sglang_omni.serve.realtime.sound import RATE, Samples

FRAME_MS = 20
FRAME = RATE * FRAME_MS // 1000


class _Piece(NamedTuple):
    """Sound of a response, or its end."""

    response_id: str
    item_id: str | None
    samples: NDArray[np.int16]


_NOTHING = np.zeros(0, np.int16)


class CallPlayback:
    """A listener whose sound is taken frame by frame.

    Args:
        put: Takes the ``output_audio_buffer`` events, by type and fields.
    """

    def __init__(self, put: Callable[..., Any]) -> None:
        self._put = put
        self._queue: deque[_Piece] = deque()
        self._resampler = Resampler(RATE)
        # The response that is being heard, and how far.
        self._response_id: str | None = None
        self._item_id: str | None = None
        self._heard = 0

    def play(self, response_id: str, item_id: str, samples: Samples, rate: int) -> None:
        """Adds samples of shape (n,) at ``rate`` Hz."""
        ready = pcm16(self._resampler.add(samples, rate))
        self._queue.append(_Piece(response_id, item_id, ready))

    def finish(self, response_id: str) -> None:
        """No more sound of this response comes."""
        last = self._queue[-1].item_id if self._queue else self._item_id
        rest = pcm16(self._resampler.finish())
        if last is not None and len(rest):
            self._queue.append(_Piece(response_id, last, rest))
        self._queue.append(_Piece(response_id, None, _NOTHING))

    def clear(self) -> Played | None:
        """Drops what was not handed out yet; returns how far the answer was heard that was being played."""
        self._queue.clear()
        self._resampler = Resampler(RATE)
        if self._response_id is None or self._item_id is None:
            return None
        played = Played(self._item_id, self._heard * 1000 // RATE)
        self._put("output_audio_buffer.cleared", response_id=self._response_id)
        self._response_id = self._item_id = None
        return played

    def frame(self) -> NDArray[np.int16]:
        """The next 20 ms, shape (480,), 24 kHz; silence if there is no sound."""
        frame = np.zeros(FRAME, np.int16)
        filled = 0
        while self._queue and filled < FRAME:
            piece = self._queue.popleft()
            if piece.item_id is None:
                self._stop(piece.response_id)
                continue
            if piece.response_id != self._response_id:
                self._response_id = piece.response_id
                self._put("output_audio_buffer.started", response_id=piece.response_id)
            if piece.item_id != self._item_id:
                self._item_id, self._heard = piece.item_id, 0
            taken = piece.samples[: FRAME - filled]
            frame[filled : filled + len(taken)] = taken
            filled += len(taken)
            self._heard += len(taken)
            if len(taken) < len(piece.samples):
                self._queue.appendleft(piece._replace(samples=piece.samples[len(taken) :]))
        return frame

    def _stop(self, response_id: str) -> None:
        if response_id == self._response_id:
            self._put("output_audio_buffer.stopped", response_id=response_id)
            self._response_id = self._item_id = None
