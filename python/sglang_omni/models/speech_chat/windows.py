"""Cutting of a recording of any length into windows, at its quietest moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sglang_omni.models.recordings.pieces import quietest_pause
from sglang_omni.models.speech_chat.components.whisper import SAMPLE_RATE

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Whisper hears 30 s at once, and pads less with silence: longer windows are less work.
LONGEST = 29 * SAMPLE_RATE
SHORTEST = 15 * SAMPLE_RATE
# A recording that is cut begins with a short window, whose text comes early.
_FIRST_LONGEST, _FIRST_SHORTEST = 10 * SAMPLE_RATE, 4 * SAMPLE_RATE


class Window(NamedTuple):
    """``start`` counts samples of the recording; ``samples`` are (n,) float32, 16 kHz."""

    start: int
    samples: NDArray[np.float32]


class WindowCutter:
    """Cuts a recording while it comes. One of at most ``LONGEST`` is one window; of a longer one, no more
    than a window and a block are in memory.

    Attributes:
        start: The first sample of the window that is not complete, counted in the recording.
    """

    def __init__(self) -> None:
        self.start = 0
        self._length = 0
        self._pieces: list[NDArray[np.float32]] = []

    @property
    def open(self) -> NDArray[np.float32]:
        """The samples of the window that is not complete."""
        if len(self._pieces) != 1:
            self._pieces = [np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.float32)]
        return self._pieces[0]

    def add(self, block: NDArray[np.float32]) -> Iterator[Window]:
        """Yields the windows that are complete with the next samples, (n,) float32 at 16 kHz."""
        self._pieces.append(block)
        self._length += len(block)
        while self._length > LONGEST:
            held = self.open
            least, most = (SHORTEST, LONGEST) if self.start else (_FIRST_SHORTEST, _FIRST_LONGEST)
            end = quietest_pause(held[:most], least)
            start, self.start = self.start, self.start + end
            self._pieces, self._length = [held[end:]], len(held) - end
            yield Window(start, held[:end])

    def rest(self) -> Iterator[Window]:
        """Yields the last window, if there is a sample in it."""
        if self._length:
            yield Window(self.start, self.open)


def windows(blocks: Iterable[NDArray[np.float32]]) -> Iterator[Window]:
    """Yields a whole recording's windows.

    Args:
        blocks: The recording in pieces of any length, 16 kHz.
    """
    cutter = WindowCutter()
    for block in blocks:
        yield from cutter.add(block)
    yield from cutter.rest()
