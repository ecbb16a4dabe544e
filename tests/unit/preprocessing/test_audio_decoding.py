"""Decoding of audio in every accepted format, and refusal of other data."""

from __future__ import annotations

import io
import struct
import tracemalloc

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_media import sound_by_ffmpeg, still

from sglang_omni.preprocessing.audio import decode_audio
from sglang_omni.proto import RequestError

PARAM = "messages[0].content[1].input_audio.data"


def tone(seconds: float, rate: int, frequency: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples: np.ndarray, rate: int, kind: str, subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def main_frequency(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate / len(samples))


@pytest.mark.parametrize(
    ("kind", "subtype", "rate"),
    [
        ("WAV", "PCM_16", 16_000),
        ("WAV", "PCM_24", 44_100),
        ("WAV", "FLOAT", 8_000),
        ("WAV", "ULAW", 8_000),
        ("FLAC", None, 48_000),
        ("MP3", None, 44_100),
        ("OGG", "VORBIS", 22_050),
        ("OGG", "OPUS", 48_000),
    ],
)
def test_kinds_that_libsndfile_reads(kind: str, subtype: str | None, rate: int) -> None:
    clip = decode_audio(encoded(tone(1.0, rate), rate, kind, subtype), param=PARAM)

    assert clip.sample_rate == 16_000
    assert clip.samples.dtype == np.float32
    assert clip.samples.ndim == 1
    assert clip.duration == pytest.approx(1.0, abs=0.1)
    assert main_frequency(clip.samples, 16_000) == pytest.approx(440, abs=3)


@pytest.mark.parametrize(("kind", "codec"), [("mp4", "aac"), ("adts", "aac"), ("webm", "libopus")])
def test_kinds_that_ffmpeg_reads(kind: str, codec: str) -> None:
    clip = decode_audio(sound_by_ffmpeg(tone(1.0, 48_000), 48_000, kind, codec), param=PARAM)

    assert clip.duration == pytest.approx(1.0, abs=0.1)
    assert main_frequency(clip.samples, 16_000) == pytest.approx(440, abs=3)


def test_channels_are_mixed_down() -> None:
    left = tone(0.5, 16_000)
    clip = decode_audio(encoded(np.stack([left, 0 * left], axis=1), 16_000, "WAV", "FLOAT"), param=PARAM)

    np.testing.assert_allclose(clip.samples, left / 2, atol=1e-6)


def test_a_rate_that_is_already_right_changes_nothing() -> None:
    samples = tone(0.3, 24_000)
    clip = decode_audio(encoded(samples, 24_000, "WAV", "FLOAT"), param=PARAM, sample_rate=24_000)

    np.testing.assert_array_equal(clip.samples, samples)


def test_samples_beyond_full_scale_are_clipped() -> None:
    clip = decode_audio(encoded(4 * tone(0.3, 16_000), 16_000, "WAV", "FLOAT"), param=PARAM)

    assert clip.samples.max() == 1.0
    assert clip.samples.min() == -1.0


@pytest.mark.parametrize("rate", [8_000, 44_100, 192_000])
def test_resampling_in_blocks_is_resampling_the_whole(rate: int) -> None:
    samples = tone(7.0, rate)
    clip = decode_audio(encoded(samples, rate, "WAV", "FLOAT"), param=PARAM)

    np.testing.assert_array_equal(clip.samples, soxr.resample(samples, rate, 16_000))
    assert clip.duration == 7.0


def test_a_high_rate_takes_no_more_memory_than_the_clip() -> None:
    data = encoded(np.zeros(384_000 * 60, np.float32), 384_000, "FLAC", "PCM_16")

    tracemalloc.start()
    clip = decode_audio(data, param=PARAM)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 4 * clip.samples.nbytes


def refusal(data: bytes, **limits: float) -> RequestError:
    with pytest.raises(RequestError) as refused:
        decode_audio(data, param=PARAM, **limits)
    assert refused.value.status == 400
    assert refused.value.param == PARAM
    assert PARAM in refused.value.message
    return refused.value


@pytest.mark.parametrize(
    "data",
    [
        b"this is not audio at all, however long it goes on " * 20,
        b"\x89PNG\r\n\x1a\n" + bytes(200),
        b"RIFF" + bytes(60),
        encoded(tone(0.5, 16_000), 16_000, "WAV")[:20],
        bytes(4096),
    ],
)
def test_what_is_no_audio_is_refused(data: bytes) -> None:
    assert "WAV, FLAC, MP3, OGG" in refusal(data).message


def with_rate(rate: int) -> bytes:
    data = encoded(tone(0.5, 16_000), 16_000, "WAV")
    return data[:24] + struct.pack("<I", rate) + data[28:]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (still(), "not audio"),
        (b"", "empty"),
        (encoded(tone(0, 16_000), 16_000, "WAV"), "0.000 s long; audio must last at least 0.05 s"),
        (encoded(np.append(tone(0.5, 16_000), np.nan), 16_000, "WAV", "FLOAT"), "not finite"),
        (with_rate(100), "sample rate of 100 Hz"),
        (with_rate(1_000_000), "sample rate of 1000000 Hz"),
        (encoded(np.zeros((100, 33), np.float32), 16_000, "WAV"), "33 channels"),
    ],
    ids=["film without sound", "no bytes", "no length", "no numbers", "slow", "fast", "channels"],
)
def test_audio_that_cannot_be_heard_is_refused(data: bytes, said: str) -> None:
    assert said in refusal(data).message


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_a_clip_over_the_limit_is_refused_with_both_lengths(kind: str) -> None:
    error = refusal(encoded(np.zeros(8_000 * 600, np.float32), 8_000, kind), max_seconds=300)

    assert "600.0 s long; the limit is 300 s" in error.message
    assert error.code == "audio_too_long"


def test_a_long_clip_that_only_ffmpeg_reads_is_refused_too() -> None:
    data = sound_by_ffmpeg(np.zeros(16_000 * 20, np.float32), 16_000, "mp4", "aac")

    assert "the limit is 5 s" in refusal(data, max_seconds=5).message


def test_a_clip_as_long_as_the_limit_is_accepted() -> None:
    data = encoded(tone(2.0, 16_000), 16_000, "WAV")

    assert decode_audio(data, param=PARAM, max_seconds=2.0).duration == 2.0


@settings(max_examples=60)
@given(st.integers(0, 3), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=12))
@example(0, [(34, 0)])  # a codec FFmpeg has no decoder for
def test_damaged_files_decode_or_are_refused(which: int, damage: list[tuple[int, int]]) -> None:
    kind, subtype = [("WAV", "PCM_16"), ("FLAC", None), ("OGG", "VORBIS"), ("MP3", None)][which]
    data = bytearray(encoded(tone(0.2, 16_000), 16_000, kind, subtype))
    for position, value in damage:
        data[position % len(data)] = value
    try:
        clip = decode_audio(bytes(data), param=PARAM, max_seconds=60)
    except RequestError:
        return
    assert np.isfinite(clip.samples).all()
