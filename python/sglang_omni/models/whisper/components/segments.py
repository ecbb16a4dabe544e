"""The segments of a window, cut where its tokens are times, and where the next window begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sglang_omni.models.whisper.components.checkpoint import FRAMES_PER_POSITION

# Of the spectrogram, and from one time token to the next.
SECONDS_PER_FRAME, SECONDS_PER_STEP = 0.01, 0.02


class Cut(NamedTuple):
    """A stretch of a window's tokens; ``start`` and ``end`` are seconds in the window."""

    start: float
    end: float
    tokens: list[int]


class CutWindow(NamedTuple):
    """
    Attributes:
        cuts: The segments. Words after the last pair of times are in none: the next window hears them whole.
        num_frames: Frames from this window's beginning to the next one's.
    """

    cuts: list[Cut]
    num_frames: int


def pairs(tokens: Sequence[int], begin: int) -> list[int]:
    """Where segments end and others begin: the index of the second of two times in a row.

    Args:
        begin: The token of second 0.
    """
    return [index for index in range(1, len(tokens)) if tokens[index - 1] >= begin and tokens[index] >= begin]


def cut_window(tokens: list[int], num_frames: int, begin: int) -> CutWindow:
    """
    Args:
        tokens: A window's, without the prompt and the end.
        num_frames: Frames of the recording in the window.
        begin: The token of second 0; beyond the vocabulary if no times are written.
    """
    borders = pairs(tokens, begin)
    times = [token - begin for token in tokens if token >= begin]
    if not borders:
        end = times[-1] if times and times[-1] > 0 else num_frames // FRAMES_PER_POSITION
        return CutWindow([Cut(0.0, end * SECONDS_PER_STEP, tokens)], num_frames)
    ends_once = len(tokens) >= 2 and tokens[-1] >= begin > tokens[-2]
    # After a last time, nothing is said. The last pair's second time belongs to words that are left.
    stops = [*borders, len(tokens)] if ends_once else [*borders[:-1], borders[-1] + 1]
    cuts: list[Cut] = []
    for index, (start, stop) in enumerate(zip([0, *stops], stops, strict=False)):
        own = tokens[start:stop]
        closing = own[-1] if index < len(stops) - 1 or ends_once else own[-2]
        cuts.append(Cut((own[0] - begin) * SECONDS_PER_STEP, (closing - begin) * SECONDS_PER_STEP, own))
    if ends_once:
        return CutWindow(cuts, num_frames)
    return CutWindow(cuts, (tokens[stops[-1] - 2] - begin) * FRAMES_PER_POSITION)
