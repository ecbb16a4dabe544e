"""G.711 against its definition and FFmpeg, and the session's formats in pieces."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import av
import numpy as np
import pytest
import soxr

from sglang_omni.serve.realtime import g711
from sglang_omni.serve.realtime.sound import RATE, Pcm, Pcma, Pcmu, SoundDecoder, SoundEncoder

EVERY_SAMPLE = np.arange(-(1 << 15), 1 << 15, dtype=np.int16)
EVERY_CODE = bytes(range(256))
# SHA-256 of EVERY_SAMPLE's codes from CPython's audioop (until 3.12): Sun's reference implementation.
REFERENCE = {
    "ulaw": "81d633c9e6972a18c74a58720b96cb8ca0bdd096d4060b646dd708c3b846019a",
    "alaw": "38488f6fd710f4686360edc4d38639f96c491595ef93f8eb8d62d5e07ca6ce7b",
}
LAWS = pytest.mark.parametrize("law", ["ulaw", "alaw"])


def codec(law: str, mode: str) -> Any:
    context: Any = av.CodecContext.create({"ulaw": "pcm_mulaw", "alaw": "pcm_alaw"}[law], mode)
    context.sample_rate = g711.RATE
    context.layout = "mono"
    return context


@LAWS
def test_every_code_is_what_ffmpeg_reads(law: g711.Law) -> None:
    [frame] = codec(law, "r").decode(av.Packet(EVERY_CODE))
    assert np.array_equal(g711.decode(EVERY_CODE, law) * (1 << 15), frame.to_ndarray()[0])


@LAWS
def test_every_sample_is_the_reference_implementations_code(law: g711.Law) -> None:
    assert hashlib.sha256(g711.encode(EVERY_SAMPLE, law)).hexdigest() == REFERENCE[law]


@LAWS
def test_a_decoded_code_is_encoded_as_itself(law: g711.Law) -> None:
    decoded = (g711.decode(EVERY_CODE, law) * (1 << 15)).astype(np.int16)
    again = g711.encode(decoded, law)
    # The µ-law has two zeros.
    assert again == (EVERY_CODE.replace(b"\x7f", b"\xff") if law == "ulaw" else EVERY_CODE)


@pytest.mark.parametrize("kind", [Pcm, Pcmu, Pcma])
def test_pieces_of_any_length_are_the_whole(kind: type[Pcm | Pcmu | Pcma]) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 9600, np.uint8).tobytes()
    whole, pieces = SoundDecoder(kind()), SoundDecoder(kind())
    expected = np.concatenate([whole.add(data), whole.finish()])
    cuts = [0, *sorted(rng.integers(0, len(data), 20)), len(data)]
    parts = [pieces.add(data[start:end]) for start, end in pairwise(cuts)]
    found = np.concatenate([*parts, pieces.finish()])
    assert len(found) == (len(data) // 2 if kind is Pcm else 3 * len(data))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("kind", [Pcmu, Pcma])
def test_a_call_sounds_as_it_was_sent(kind: type[Pcmu | Pcma]) -> None:
    """A tone within the telephone's band comes back with G.711's own noise, some 38 dB below it."""
    tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)
    encoder, decoder = SoundEncoder(kind()), SoundDecoder(kind())
    sent = b"".join(encoder.add(piece, RATE) for piece in np.array_split(tone, 13)) + encoder.finish()
    assert len(sent) == g711.RATE
    heard = np.concatenate([decoder.add(sent), decoder.finish()])
    inner = slice(RATE // 10, -RATE // 10)
    noise = heard[inner] - tone[inner]
    assert 10 * np.log10(np.mean(tone[inner] ** 2) / np.mean(noise**2)) > 33


def test_what_was_left_at_the_end_is_resampled_too() -> None:
    sent = np.random.default_rng(1).integers(0, 256, 8000, np.uint8).tobytes()
    decoder = SoundDecoder(Pcmu())
    heard = np.concatenate([decoder.add(sent), decoder.finish()])
    expected = soxr.resample(g711.decode(sent, "ulaw"), g711.RATE, RATE)
    np.testing.assert_allclose(heard, expected, atol=1e-5)
