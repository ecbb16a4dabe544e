"""Cutting of a recording of any length into windows, at its quietest moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

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


def windows(blocks: Iterable[NDArray[np.float32]]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yields each window's first sample, counted in the recording, and its samples.

    A recording of at most ``LONGEST`` is one window. Of a longer one, no more than a window and a block are
    in memory.

    Args:
        blocks: The recording in pieces of any length, 16 kHz.
    """
    start, held, waiting = 0, np.zeros(0, np.float32), 0
    pieces: list[NDArray[np.float32]] = []
    for block in blocks:
        pieces.append(block)
        waiting += len(block)
        if len(held) + waiting <= LONGEST:
            continue
        held, pieces, waiting = np.concatenate([held, *pieces]), [], 0
        while len(held) > LONGEST:
            least, most = (SHORTEST, LONGEST) if start else (_FIRST_SHORTEST, _FIRST_LONGEST)
            end = quietest_pause(held[:most], least)
            yield start, held[:end]
            start, held = start + end, held[end:]
    held = np.concatenate([held, *pieces])
    if len(held):
        yield start, held
