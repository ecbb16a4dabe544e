"""What a player has to play, computed by hand."""

from __future__ import annotations

import pytest

from sglang_omni.scheduling.playback import Playback


def test_before_the_first_sound() -> None:
    playback = Playback(began=10.0)

    assert playback.feed(11.0, 0.0) == 0.0

    assert (playback.first_sound, playback.dry_at, playback.real_time_factor) == (None, None, None)
    assert playback.in_hand_s(11.0) == 0.0
    assert (playback.seconds, playback.underruns, playback.underrun_s) == (0.0, 0, 0.0)


def test_sound_in_time_leaves_no_gap() -> None:
    playback = Playback(began=10.0)

    gaps = [playback.feed(now, seconds) for now, seconds in ((10.5, 1.0), (10.75, 2.0), (13.5, 0.5))]

    # The third piece comes at the moment at which the first two have been played.
    assert gaps == [0.0, 0.0, 0.0]
    assert playback.first_sound == 0.5
    assert playback.dry_at == 14.0
    assert playback.in_hand_s(13.75) == 0.25
    assert playback.real_time_factor == 1.0  # 3.5 s until the last piece, and as much sound


def test_late_sound_is_an_underrun() -> None:
    playback = Playback(began=0.0)

    # Played 1.0 to 2.0; nothing until 2.25, then until 2.75; nothing until 4.25.
    gaps = [playback.feed(now, seconds) for now, seconds in ((1.0, 1.0), (2.25, 0.5), (4.25, 2.0))]

    assert gaps == [0.0, 0.25, 1.5]
    assert (playback.underruns, playback.underrun_s, playback.longest_underrun_s) == (2, 1.75, 1.5)
    assert playback.dry_at == 6.25
    assert playback.in_hand_s(6.5) == 0.0
    assert playback.real_time_factor == pytest.approx(4.25 / 3.5)


def test_a_gap_is_made_up_for_by_no_later_sound() -> None:
    playback = Playback(began=0.0)
    for now, seconds in ((0.0, 0.1), (1.0, 30.0), (1.1, 30.0)):
        playback.feed(now, seconds)

    assert playback.underrun_s == pytest.approx(0.9)
    assert playback.dry_at == 61.0
