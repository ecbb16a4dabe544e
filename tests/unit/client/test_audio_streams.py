"""Encoding of audio in pieces: they are one file, however they are cut."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import wave

import numpy as np
import pytest
from decoded_audio import assert_sounds_like, by_ffmpeg, by_libsndfile, chirp
from hypothesis import given
from hypothesis import strategies as st

from sglang_omni.generation.audio import (
    FORMAT_MIME_TYPES,
    AudioFileEncoder,
    Base64Pieces,
    Resampler,
    decode_pcm,
    decode_wav,
    encode_audio,
    encode_pcm,
    encode_wav,
)

CODECS = ["mp3", "opus", "aac", "flac"]
FILES = ["wav", *CODECS]


def encoded(kind: str, *pieces: tuple[np.ndarray, int]) -> bytes:
    encoder = AudioFileEncoder(kind)
    return b"".join([encoder.encode(samples, rate) for samples, rate in pieces] + [encoder.finish()])


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("kind", FILES)
def test_every_rate_can_be_encoded(kind, rate):
    sound = chirp(rate=rate)
    whole, mime = encode_audio(sound, response_format=kind, sample_rate=rate)
    assert mime == FORMAT_MIME_TYPES[kind]
    assert_sounds_like(whole, sound, rate)
    assert_sounds_like(encoded(kind, *[(piece, rate) for piece in np.array_split(sound, 5)]), sound, rate)


@pytest.mark.parametrize("kind", FILES)
def test_stereo_files_have_both_channels(kind):
    import av

    left = chirp(rate=44_100)
    data, _ = encode_audio(np.stack([left, left]), response_format=kind, sample_rate=44_100)
    with av.open(io.BytesIO(data)) as container:
        assert container.streams.audio[0].channels == 2
    samples, rate = by_ffmpeg(data)
    assert len(samples) / rate == pytest.approx(1.5, abs=0.05)


def test_streamed_wav_is_read_by_what_people_read_it_with():
    sound = decode_pcm(encode_pcm(chirp()))
    data = encoded("wav", (sound[:7], 24_000), (sound[7:], 24_000))
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"  # as FFmpeg writes it into a pipe
    for decode in (decode_wav, by_ffmpeg, by_libsndfile):
        samples, rate = decode(data)
        assert rate == 24_000
        np.testing.assert_array_equal(samples, sound)
    with wave.open(io.BytesIO(data)) as file:
        assert file.readframes(file.getnframes()) == encode_pcm(sound)


@pytest.mark.parametrize("kind", FILES)
def test_the_sound_begins_to_come_before_it_has_ended(kind):
    """A player has a tenth of a second of it when little more has been given."""
    encoder = AudioFileEncoder(kind)
    data = encoder.encode(chirp(0.25), 24_000)
    if kind != "flac":  # whose frames are 4096 samples here, and are decoded one late
        samples, rate = by_ffmpeg(data)
        assert len(samples) / rate > 0.1
    assert len(data) > 100


@pytest.mark.parametrize("kind", ["pcm", *FILES])
def test_a_rate_that_changes_on_the_way_is_resampled(kind):
    low, high = chirp(1.0, 16_000), chirp(1.0, 24_000)
    encoder = AudioFileEncoder(kind)
    pieces = [(low, 16_000), (high[:9_999], 24_000), (high[9_999:], 24_000), (low, 16_000)]
    data = b"".join([encoder.encode(*piece) for piece in pieces] + [encoder.finish()])
    assert encoder.sample_rate == 16_000
    if kind == "pcm":
        data = encode_wav(decode_pcm(data), 16_000)
    assert_sounds_like(data, np.concatenate([low, low, low]), 16_000)


@pytest.mark.parametrize("kind", sorted(FORMAT_MIME_TYPES))
def test_what_has_no_samples_is_no_file(kind):
    assert AudioFileEncoder(kind).finish() == b""


def test_mp3_has_bits_enough_for_speech():
    data, _ = encode_audio(chirp(3.0), response_format="mp3", sample_rate=24_000)
    assert 64_000 <= len(data) * 8 / 3.0 < 72_000


def test_what_is_no_number_is_silence_in_every_format():
    bad = np.full(4_800, np.nan, np.float32)
    for kind in CODECS:
        samples, _ = by_ffmpeg(encoded(kind, (bad, 24_000)))
        assert np.abs(samples).max() < 0.01


def test_a_stream_of_raw_samples_needs_no_codec(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setitem(sys.modules, "soxr", None)
    sound = chirp(0.1)
    assert encoded("pcm16", (sound, 24_000)) == encode_pcm(sound)
    assert encoded("wav", (sound, 24_000)).endswith(encode_pcm(sound))
    with pytest.raises(ValueError, match="needs PyAV and soxr"):
        AudioFileEncoder("mp3")


def test_pcm_has_the_scale_of_other_decoders():
    every_value = np.arange(-32768, 32768).astype("<i2").tobytes()
    data = encode_wav(decode_pcm(every_value), 24_000)
    for decode in (by_ffmpeg, by_libsndfile):
        np.testing.assert_array_equal(decode(data)[0], decode_wav(data)[0])


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_base64_pieces_are_right_one_by_one_and_joined(pieces):
    encoder = Base64Pieces()
    encoded_pieces = [encoder.add(piece) for piece in pieces] + [encoder.add(b"", last=True)]
    data = b"".join(pieces)
    assert b"".join(map(base64.b64decode, encoded_pieces)) == data
    assert base64.b64decode("".join(encoded_pieces)) == data
    assert all(len(base64.b64decode(piece)) % 2 == 0 for piece in encoded_pieces[:-1])


def test_resampled_pieces_are_as_one():
    import soxr

    sound = chirp(rate=44_100)
    resampler = Resampler(24_000)
    pieces = [resampler.add(piece, 44_100) for piece in np.array_split(sound, 9)] + [resampler.finish()]
    np.testing.assert_allclose(np.concatenate(pieces), soxr.resample(sound, 44_100, 24_000), atol=1e-4)


def test_files_whose_listeners_have_left():
    """In a process of their own, which an old PyAV would take down."""
    code = (
        "import gc, sys\n"
        "import numpy as np\n"
        "from sglang_omni.generation.audio import AudioFileEncoder\n"
        "for kind in sys.argv[1:]:\n"
        "    for kept in (False, True) * 20:\n"
        "        encoder = AudioFileEncoder(kind)\n"
        "        encoder.encode(np.full(72_000, 0.1, np.float32), 24_000)\n"
        "        encoder.cycle = encoder if kept else None\n"
        "        del encoder\n"
        "        gc.collect()\n"
    )
    left = subprocess.run([sys.executable, "-c", code, *FILES], capture_output=True, text=True, timeout=120)
    assert (left.returncode, left.stderr) == (0, "")
