"""What is handed out of a call's sound, and what is told of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from sglang_omni.serve.realtime.playback import FRAME, CallPlayback


class Told(list[tuple[str, str]]):
    def put(self, kind: str, **fields: Any) -> None:
        self.append((kind.removeprefix("output_audio_buffer."), fields["response_id"]))


def sound(frames: float, value: float = 0.5) -> np.ndarray:
    return np.full(int(frames * FRAME), value, np.float32)


def test_sound_is_handed_out_once_and_in_order() -> None:
    reported = Told()
    playback = CallPlayback(reported.put)
    assert not playback.frame().any()
    playback.play("r1", "i1", sound(1.5, 0.25), 24_000)
    playback.play("r1", "i1", sound(1), 24_000)
    assert reported == []
    frames = [playback.frame() for _ in range(3)]
    assert np.array_equal(
        np.concatenate(frames) / 32767,
        np.concatenate([np.full(720, 8192), np.full(480, 16384), np.zeros(240)]) / 32767,
    )
    # More may come: it has not stopped.
    assert reported == [("started", "r1")]
    playback.finish("r1")
    assert not playback.frame().any()
    assert reported == [("started", "r1"), ("stopped", "r1")]
    assert playback.clear() is None


def test_what_is_cleared_is_not_heard_and_the_rest_is_counted() -> None:
    reported = Told()
    playback = CallPlayback(reported.put)
    playback.play("r1", "i1", sound(100), 24_000)
    playback.finish("r1")
    for _ in range(7):
        playback.frame()
    assert playback.clear() == ("i1", 140)
    assert reported == [("started", "r1"), ("cleared", "r1")]
    assert not playback.frame().any()
    assert playback.clear() is None
    playback.play("r2", "i2", sound(1), 24_000)
    assert playback.frame().all()
    assert playback.clear() == ("i2", 20)


def test_each_item_is_counted_for_itself() -> None:
    reported = Told()
    playback = CallPlayback(reported.put)
    playback.play("r1", "i1", sound(2), 24_000)
    playback.play("r1", "i2", sound(2), 24_000)
    playback.finish("r1")
    playback.play("r2", "i3", sound(1), 24_000)
    for _ in range(3):
        playback.frame()
    assert playback.clear() == ("i2", 20)
    assert reported == [("started", "r1"), ("cleared", "r1")]


def test_sound_of_another_rate_ends_with_its_last_sample() -> None:
    reported = Told()
    playback = CallPlayback(reported.put)
    tone = np.sin(np.arange(4410) / 8).astype(np.float32)
    for piece in np.array_split(tone, 5):
        playback.play("r1", "i1", piece, 44_100)
    playback.finish("r1")
    heard = np.concatenate([playback.frame() for _ in range(6)])
    assert abs(np.flatnonzero(heard)[-1] + 1 - 2400) < 20
    assert reported == [("started", "r1"), ("stopped", "r1")]
