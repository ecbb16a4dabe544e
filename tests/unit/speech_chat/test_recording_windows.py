"""Cutting of recordings: at pauses, nothing lost, and never more in memory than a window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from sglang_omni.models.speech_chat.windows import LONGEST, SHORTEST, windows

RATE = 16_000
_noise = np.random.default_rng(0)


def sound(seconds: float, loudness: float = 0.3) -> np.ndarray:
    return (loudness * _noise.standard_normal(int(seconds * RATE))).astype(np.float32)


def spoken(minutes: float) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Noise with a pause of half a second every five or so; the starts and ends of the pauses in seconds."""
    parts, pauses, now = [], [], 0.0
    while now < minutes * 60:
        length = 4.0 + 2 * _noise.random()
        parts += [sound(length), sound(0.5, 0.001)]
        pauses.append((now + length, now + length + 0.5))
        now += length + 0.5
    return np.concatenate(parts), pauses


@pytest.mark.parametrize("size", [777, RATE, 45 * RATE])
def test_cuts_lie_in_pauses_and_lose_nothing(size: int) -> None:
    samples, pauses = spoken(3)
    cut = list(windows(samples[at : at + size] for at in range(0, len(samples), size)))

    np.testing.assert_array_equal(np.concatenate([window for _, window in cut]), samples)
    assert [start + len(window) for start, window in cut[:-1]] == [start for start, _ in cut[1:]]
    assert max(len(window) for _, window in cut) <= LONGEST
    assert min(len(window) for _, window in cut[1:-1]) >= SHORTEST
    for start, _ in cut[1:]:
        assert any(begin <= start / RATE <= end for begin, end in pauses), start / RATE


def test_a_short_clip_is_one_window() -> None:
    clip = sound(28.0)
    ((start, window),) = windows([clip[:5], clip[5:]])
    assert start == 0
    np.testing.assert_array_equal(window, clip)
    assert list(windows([])) == []


def test_the_first_window_of_a_long_recording_is_short() -> None:
    (_, first), *_ = windows([spoken(2)[0]])
    assert len(first) <= 10 * RATE


def test_speech_without_a_pause_is_cut_all_the_same() -> None:
    samples = sound(100.0)
    starts = [start for start, _ in windows([samples])]
    assert len(starts) > 3
    assert all(SHORTEST <= later - earlier <= LONGEST for earlier, later in pairwise(starts[1:]))


def test_no_more_is_read_than_a_window_needs() -> None:
    """The end of a recording may not have been decoded yet when its first text is there."""
    read = 0

    def blocks() -> Iterator[np.ndarray]:
        nonlocal read
        for _ in range(3600):
            read += RATE
            yield np.full(RATE, 0.1, np.float32)

    for start, window in windows(blocks()):
        assert read <= start + len(window) + LONGEST + RATE
