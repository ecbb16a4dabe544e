"""What is at the microphone in scenarios, and when it is sent."""

from __future__ import annotations

import asyncio
import base64
import time

import numpy as np
import pytest

from sglang_omni.bench.clips import RATE, Clips, SpokenClip
from sglang_omni.bench.judge.cast import Cast
from sglang_omni.bench.judge.microphone import FRAME_S, Microphone
from sglang_omni.bench.judge.sounds import (
    Samples,
    at_ratio,
    audible,
    second_voice,
    speech_shaped_noise,
    trimmed,
)


def tone(hertz: float, seconds: float, peak: float = 8000.0) -> Samples:
    return (peak * np.sin(2 * np.pi * hertz * np.arange(round(seconds * RATE)) / RATE)).astype(np.int16)


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), np.int16)


def pitch(samples: Samples) -> float:
    return float(np.fft.rfftfreq(len(samples), 1 / RATE)[np.abs(np.fft.rfft(samples)).argmax()])


def decibels(samples: Samples) -> float:
    return float(10 * np.log10(np.mean(np.square(samples, dtype=np.float64))))


def test_what_can_be_heard() -> None:
    samples = np.concatenate([silence(0.1), tone(440, 0.2), silence(0.3), tone(440, 0.105)])
    assert np.array(audible(samples, 328)) == pytest.approx(np.array([[0.1, 0.3], [0.6, 0.705]]))
    assert audible(tone(440, 1.0, peak=300), 328) == []
    assert audible(samples[:0], 328) == []


def test_clips_begin_and_end_with_speech() -> None:
    speech = np.concatenate([tone(440, 0.2, peak=500), silence(0.3), tone(440, 0.2, peak=500)])
    padded = np.concatenate([silence(0.24), speech, silence(0.5)])
    assert len(trimmed(padded)) == len(speech)
    assert len(trimmed(silence(0.2))) == len(silence(0.2))


@pytest.mark.parametrize("snr_db", [0.0, 10.0, 30.0])
def test_a_ratio_is_kept(snr_db: float) -> None:
    speech, sound = tone(440, 1.0, peak=20_000), tone(300, 1.0, peak=900)
    assert decibels(speech) - decibels(at_ratio(sound, speech, snr_db)) == pytest.approx(snr_db, abs=0.1)


def test_another_person_has_another_voice() -> None:
    assert pitch(second_voice(tone(400, 1.0))) == pytest.approx(300, abs=2)


def test_noise_is_steady_and_as_the_speech_is() -> None:
    speech = np.concatenate([tone(440, 1.0), silence(1.0)])
    noise = speech_shaped_noise(speech, seed=0)
    assert pitch(noise) == pytest.approx(440, abs=2)
    halves = np.split(noise, 2)
    assert decibels(noise) == pytest.approx(decibels(speech), abs=0.5)
    assert abs(decibels(halves[0]) - decibels(halves[1])) < 6
    assert (noise == speech_shaped_noise(speech, seed=0)).all()
    assert (noise != speech_shaped_noise(speech, seed=1)).any()


def test_nobody_in_a_scenario_says_what_another_says() -> None:
    clips = [SpokenClip(tone(400 + 100 * number, 0.5), str(number)) for number in range(3)]
    cast = Cast(Clips(clips, seed=0), None, snr_db=12.0)
    for number in range(6):
        assert cast.question(number).text == str(number % 3)
        assert cast.interruption(number).text == str((number + 1) % 3)
        other = cast.second_voice(number)
        assert pitch(other) == pytest.approx(0.75 * pitch(cast.interruption(number).samples), abs=3)
        assert decibels(cast.question(number).samples) - decibels(other) == pytest.approx(12, abs=0.1)
    assert (cast.question(0).samples != cast.question(3).samples).any()


class Sent:
    """Frames, and when each was sent."""

    def __init__(self) -> None:
        self.frames: list[Samples] = []
        self.times: list[float] = []

    async def __call__(self, audio: str) -> None:
        self.frames.append(np.frombuffer(base64.b64decode(audio), "<i2"))
        self.times.append(time.perf_counter())


async def run_for(microphone: Microphone, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await microphone.run()


async def test_an_open_microphone_sends_all_the_time_and_a_clip_when_it_says() -> None:
    sent = Sent()
    microphone = Microphone(sent, background=None, is_open=True)
    clip = tone(440, 0.09)
    start, end = microphone.play(clip)
    await run_for(microphone, 0.3)
    assert 10 <= len(sent.frames) <= 15
    assert end - start == pytest.approx(0.09)
    [first, *_, last] = [place for place, frame in enumerate(sent.frames) if frame.any()]
    heard = np.concatenate(sent.frames[first : last + 1])
    assert (heard[: len(clip)] == clip).all()
    assert not heard[len(clip) :].any()
    # A frame is sent when it has been spoken, and no earlier.
    assert sent.times[first] >= start + FRAME_S - 1e-4
    assert sent.times[last] >= end - 1e-4


async def test_a_closed_microphone_sends_what_is_said_alone() -> None:
    sent = Sent()
    microphone = Microphone(sent, background=None, is_open=False)
    await microphone.all_sent()
    microphone.play(tone(440, 0.06))
    running = asyncio.create_task(run_for(microphone, 0.3))
    await asyncio.wait_for(microphone.all_sent(), 5)
    assert len(sent.frames) == 3
    await running
    assert len(sent.frames) == 3


async def test_what_is_said_at_once_is_mixed_with_the_background() -> None:
    sent = Sent()
    background = np.arange(700, dtype=np.int16)
    microphone = Microphone(sent, background=background, is_open=True)
    for _ in range(2):
        microphone.play(np.full(480, 20_000, np.int16))
    await run_for(microphone, 0.15)
    whole = np.concatenate(sent.frames).astype(np.int32)
    # The background goes on after its end, and what is too loud is clipped.
    loud = whole == 2**15 - 1
    assert loud.sum() == 480
    expected = np.resize(background, len(whole))
    assert (whole[~loud] == expected[~loud]).all()
