"""Sound from and to files and devices; the devices are files, since the machines of tests have none."""

from __future__ import annotations

import base64
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sglang_omni.client import (
    CompletionAudio,
    CompletionResult,
    GenerateChunk,
    Player,
    Sound,
    SoundDeviceError,
    SpeechResult,
    SpeechStreamChunk,
    microphone,
    play,
    record,
    save,
)
from sglang_omni.client.realtime import RealtimeAnswer
from sglang_omni.generation.samples import decode_pcm

RATE = 24_000
TONE = Sound((0.3 * np.sin(np.arange(RATE) / 10)).astype(np.float32), RATE)
QUIET = np.zeros(3 * RATE, np.float32)


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with a loudspeaker and a microphone: the folder of what they play and hear."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "sound_card"))
    monkeypatch.setenv("SOUND_CARD_PLAYED", str(tmp_path / "played.pcm"))
    monkeypatch.setenv("SOUND_CARD_HEARS", str(tmp_path / "heard.wav"))
    yield tmp_path
    sys.modules.pop("sounddevice", None)


def played(card: Path) -> np.ndarray:
    return decode_pcm((card / "played.pcm").read_bytes())


def results() -> list[object]:
    wav = base64.b64encode(TONE.encode()).decode()
    halves = np.split(TONE.samples, 2)
    return [
        TONE,
        SpeechResult(TONE.encode(), "audio/wav", "wav"),
        SpeechResult(TONE.encode("pcm"), "audio/pcm", "pcm", RATE),
        CompletionResult("r", "", CompletionAudio("a", wav)),
        RealtimeAnswer(samples=TONE.samples),
        [SpeechStreamChunk("r", half, RATE) for half in halves],
        # The last of a request's chunks is the whole again.
        [
            *(GenerateChunk("r", audio_data=half, sample_rate=RATE) for half in halves),
            GenerateChunk("r", text="said"),
            GenerateChunk("r", audio_data=TONE.samples, sample_rate=RATE, finish_reason="stop"),
        ],
    ]


@pytest.mark.parametrize("index", range(len(results())))
def test_whatever_has_sound_is_played_and_saved(index: int, card: Path) -> None:
    sound = results()[index]
    play(sound)
    np.testing.assert_allclose(played(card), TONE.samples, atol=1e-4)
    save(card / "saved.wav", sound)
    again = Sound.load(card / "saved.wav")
    np.testing.assert_allclose(again.samples, TONE.samples, atol=1e-4)
    assert (again.sample_rate, again.seconds) == (RATE, 1.0)


@pytest.mark.parametrize("ending", ["mp3", "flac", "opus", "ogg", "aac", "wav"])
def test_formats_of_files(ending: str, tmp_path: Path) -> None:
    TONE.save(tmp_path / f"tone.{ending}")
    again = Sound.load(tmp_path / f"tone.{ending}")
    assert again.seconds == pytest.approx(1.0, abs=0.15)
    assert np.sqrt(np.mean(again.samples**2)) == pytest.approx(0.21, abs=0.03)


def test_an_encoded_result_is_saved_as_it_came(tmp_path: Path) -> None:
    save(tmp_path / "a.mp3", SpeechResult(b"ID3 as it came", "audio/mpeg", "mp3"))
    assert (tmp_path / "a.mp3").read_bytes() == b"ID3 as it came"


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.txt: its ending says no format of sound; it may be \.aac"):
        save(tmp_path / "a.txt", TONE)
    with pytest.raises(ValueError, match="the completion has no sound: ask for output_modalities"):
        save(tmp_path / "a.wav", CompletionResult("r", "text"))
    with pytest.raises(ValueError, match="there is no sound in it"):
        save(tmp_path / "a.wav", [])
    with pytest.raises(TypeError, match="a int is no sound"):
        save(tmp_path / "a.wav", [3])
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.mp3").write_bytes(b"no sound at all")
    with pytest.raises(ValueError, match="this is no sound file"):
        Sound.load(tmp_path / "a.mp3")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ValueError, match=r"PyAV is needed: pip install 'sgl-omni\[audio\]'"):
        Sound.load(tmp_path / "a.mp3")


def test_a_player_that_is_stopped_is_silent(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUND_CARD_PACE", "real time")
    player = Player()
    player.add(Sound(np.ones(20 * RATE, np.float32) / 2, RATE))
    while player.played_s < 0.1:
        pass
    player.stop()
    assert 0.1 <= player.played_s < 10
    assert len(played(card)) == round(player.played_s * RATE)


def test_an_error_silences_a_player(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUND_CARD_PACE", "real time")
    with contextlib.suppress(ZeroDivisionError), Player() as player:
        player.add(Sound(np.ones(20 * RATE, np.float32) / 2, RATE))
        raise ZeroDivisionError
    assert player.played_s < 10


def test_recording_for_so_long(card: Path) -> None:
    TONE.save(card / "heard.wav")
    sound = record(0.25)
    assert sound.seconds == 0.25
    np.testing.assert_allclose(sound.samples, TONE.samples[: RATE // 4], atol=1e-4)


def test_recording_until_a_speaker_is_silent(card: Path) -> None:
    # The silence before a speaker begins ends nothing.
    Sound(np.concatenate([QUIET, TONE.samples, QUIET, TONE.samples]), RATE).save(card / "heard.wav")
    assert record(silence_s=0.5).seconds == pytest.approx(4.5, abs=0.11)
    assert record(silence_s=0.5, longest_s=2.0).seconds == pytest.approx(2.0, abs=0.11)


def test_a_microphone_gives_blocks(card: Path) -> None:
    TONE.save(card / "heard.wav")
    blocks = microphone(block_s=0.05)
    assert [next(blocks).seconds for _ in range(3)] == [0.05] * 3


def test_machines_without_sound(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOUND_CARD_PLAYED")
    with pytest.raises(SoundDeviceError, match="this machine has no loudspeaker"):
        play(TONE)
    monkeypatch.delenv("SOUND_CARD_HEARS")
    with pytest.raises(SoundDeviceError, match="this machine has no microphone"):
        record(1)
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(SoundDeviceError, match=r"sounddevice is needed: pip install 'sgl-omni\[audio\]'"):
        play(TONE)
