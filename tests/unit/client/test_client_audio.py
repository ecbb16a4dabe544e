"""Encoding and decoding of whole audio files."""

from __future__ import annotations

import base64
import io
import sys
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_omni.generation.audio import (
    audio_to_base64,
    decode_pcm,
    decode_wav,
    encode_audio,
    encode_pcm,
    encode_wav,
    to_mono,
    to_numpy,
)


@given(st.lists(st.integers(-32768, 32767), max_size=64))
def test_pcm_round_trip_is_exact(values):
    pcm = np.array(values, "<i2").tobytes()
    assert encode_pcm(decode_pcm(pcm)) == pcm


def test_pcm_clips_and_survives_what_is_no_number():
    loud = np.array([2.0, -2.0, np.nan, np.inf, -np.inf], np.float32)
    assert np.frombuffer(encode_pcm(loud), "<i2").tolist() == [32767, -32768, 0, 32767, -32768]


def test_wav_is_read_by_the_standard_library():
    samples = np.linspace(-1, 1, 100, dtype=np.float32)
    with wave.open(io.BytesIO(encode_wav(samples, 16_000))) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (1, 16_000, 100)
    decoded, rate = decode_wav(encode_wav(samples, 16_000))
    assert rate == 16_000
    np.testing.assert_allclose(decoded, samples, atol=1e-4)


def test_stereo_wav_is_interleaved():
    left, right = np.zeros(3, np.float32), np.ones(3, np.float32)
    with wave.open(io.BytesIO(encode_wav(np.stack([left, right]), 8_000))) as file:
        assert file.getnchannels() == 2
        assert np.frombuffer(file.readframes(3), "<i2").tolist() == [0, 32767] * 3


def test_empty_audio_is_a_valid_wav():
    decoded, _ = decode_wav(encode_wav(np.zeros(0, np.float32), 24_000))
    assert decoded.shape == (0,)


@pytest.mark.parametrize("data", [b"", b"RIFF", b"not audio at all"])
def test_decode_wav_refuses_what_is_none(data):
    with pytest.raises(ValueError, match="not a PCM WAV"):
        decode_wav(data)


def test_to_numpy_takes_what_stages_give():
    assert to_numpy([0, 0.5]).dtype == np.float32
    assert to_numpy(np.array([1, 2], np.int64)).dtype == np.float32
    assert to_numpy(np.array([16384, -32768], "<i2").tobytes()).tolist() == [0.5, -1.0]

    class Tensor:
        def detach(self):
            return self

        cpu = float = detach

        def numpy(self):
            return np.array([0.25], np.float32)

    assert to_numpy(Tensor()).tolist() == [0.25]
    with pytest.raises(TypeError, match="str"):
        to_numpy("audio")


def test_to_mono_averages_channels_along_the_shorter_axis():
    stereo = np.stack([np.zeros(5), np.ones(5)])
    assert to_mono(stereo).tolist() == to_mono(stereo.T).tolist() == [0.5] * 5
    assert to_mono(np.ones((1, 4))).shape == (4,)
    assert to_mono(np.float32(1.0).reshape(1, 1)).shape == (1,)


def test_unknown_format_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'ogg'; supported: aac, flac, mp3, opus, pcm, pcm16, wav"):
        encode_audio([0.0], response_format="ogg")


def test_missing_encoder_is_reported_as_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ValueError, match=r"pip install 'sgl-omni\[audio\]'"):
        encode_audio([0.0], response_format="flac")
    assert encode_audio([0.0], response_format="wav")[0].startswith(b"RIFF")


def test_base64_is_of_the_file():
    assert base64.b64decode(audio_to_base64([0.0, 1.0], output_format="pcm")) == b"\0\0\xff\x7f"
