"""Whisper's features and rules against transformers' own, and its cuts and cache."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from transcription_runs import RATE, recording, tones

from sglang_omni.models.recordings.mel import MelFilters
from sglang_omni.models.recordings.recording import SoundReader
from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
from sglang_omni.models.whisper.components.decoder_cache import DecoderCache
from sglang_omni.models.whisper.components.log_mel import MelReader
from sglang_omni.models.whisper.components.rules import DecodingRules
from sglang_omni.models.whisper.components.segments import cut_window
from sglang_omni.proto import RequestError


def reader(samples: np.ndarray, bands: int = 80, frames: int = 300, **limits) -> MelReader:
    limits = {"max_seconds": 600.0, "decode_seconds": 60.0, **limits}
    return MelReader(SoundReader(recording(samples), **limits), MelFilters(bands), frames)


LENGTHS = (1_600, 16_000, 47_999, 48_000, 48_001, 48_037, 340_001)
LENGTHS_OF_30_S = (1_600, 479_999, 480_000, 480_001, 1_040_003)


@pytest.mark.parametrize(
    ("samples", "frames", "bands"),
    [
        *((samples, 300, 80) for samples in LENGTHS),
        *((samples, 3_000, 128) for samples in LENGTHS_OF_30_S),
    ],
)
def test_features_are_those_of_transformers(samples, frames, bands):
    """Windows begin anywhere. Behind the end of a short recording there is silence, of a long one nothing."""
    from transformers import WhisperFeatureExtractor

    sound = tones(9, samples / RATE)[:samples]
    # The loudest moment is the last one: all is in relation to it.
    sound[-200:] *= 1.9
    extractor = WhisperFeatureExtractor(feature_size=bands, chunk_length=frames // 100)
    padding = "max_length" if samples <= frames * 160 else "longest"
    (whole,) = extractor([sound], truncation=False, padding=padding, sampling_rate=RATE)["input_features"]
    # With silence behind it, what is left of a hop has a frame, too.
    num_frames = -(-samples // 160) if samples <= frames * 160 else samples // 160
    windows = reader(sound, bands, frames)
    at, steps = 0, random.Random(samples)
    while (window := windows.window(at)).num_frames:
        expected = whole[:, at : at + frames]
        assert window.num_frames == min(frames, num_frames - at)
        count = expected.shape[1]
        assert np.allclose(window.features[:, :count], expected, atol=2e-5)
        assert window.features.shape[1] == frames
        assert not window.features[:, count:].any()
        at += steps.randint(1, window.num_frames)
    assert at == num_frames
    assert windows.seconds == pytest.approx(samples / RATE)


def test_a_long_recording_is_never_whole_in_memory():
    windows = reader(np.tile(tones(1, 60.0), 6))
    first = windows.window(0)
    assert first.num_frames == 300
    assert windows.seconds < 120
    windows.window(25_000)
    assert windows._frames.shape[1] < 12_000


def test_a_recording_that_is_too_long():
    with pytest.raises(RequestError, match="limit is 5 s"):
        reader(tones(1, 8.0), max_seconds=5.0).window(0)


@pytest.mark.parametrize("max_initial", [50, None])
def test_rules_are_those_of_transformers(whispers, max_initial):
    """For random logits after random beginnings, among them such as the rules themselves would not allow."""
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    twins = whispers["multilingual"]
    settings = twins.model.generation_config
    settings.max_initial_timestamp_index, reported = max_initial, settings.max_initial_timestamp_index
    try:
        theirs = [
            SuppressTokensAtBeginLogitsProcessor(settings.begin_suppress_tokens, begin_index=3),
            SuppressTokensLogitsProcessor(settings.suppress_tokens),
            WhisperTimeStampLogitsProcessor(settings, begin_index=3),
        ]
    finally:
        settings.max_initial_timestamp_index = reported
    checkpoint = WhisperCheckpoint.from_dir(twins.path)
    tokens = type(checkpoint.tokens)(**{**vars(checkpoint.tokens), "max_initial_timestamp": max_initial})
    size = checkpoint.shape.vocab_size
    rules = DecodingRules(tokens, size, times=True, device="cpu")
    begin = settings.no_timestamps_token_id + 1
    chosen = random.Random(0)
    generator = torch.Generator().manual_seed(0)
    for count in [0, 1, 2, 3, 4, 7] * 4:
        written = [
            [chosen.choice([chosen.randrange(begin), chosen.randrange(begin, size)]) for _ in range(count)]
            for _ in range(6)
        ]
        logits = torch.randn(6, size, generator=generator) * 3
        # So that words are likelier than all times together in some rows.
        logits[::2, 5] += 12
        expected = logits.clone()
        for process in theirs:
            expected = process(torch.tensor([[0, 0, 0, *row] for row in written]).view(6, -1), expected)
        rules.apply(logits, [rules.allowed(row) for row in written])
        assert torch.equal(logits, expected)


BEGIN = 100


def test_cuts():
    def cut(tokens: list[int]) -> tuple[list[tuple[float, float, list[int]]], int]:
        window = cut_window(tokens, 1001, BEGIN)
        return [(round(c.start, 2), round(c.end, 2), c.tokens) for c in window.cuts], window.num_frames

    # Two whole segments, and nothing after.
    assert cut([100, 1, 110, 110, 2, 130]) == ([(0.0, 0.2, [100, 1, 110]), (0.2, 0.6, [110, 2, 130])], 1001)
    # Words without an end are left to the next window, from the last end on.
    assert cut([100, 1, 110, 112, 2]) == ([(0.0, 0.2, [100, 1, 110, 112])], 20)
    assert cut([105, 1, 110, 110, 2, 120, 121, 3])[1] == 40
    # No pair: one segment, up to its last time if it has one.
    assert cut([100, 1, 2]) == ([(0.0, 10.0, [100, 1, 2])], 1001)
    assert cut([100, 1, 120]) == ([(0.0, 0.4, [100, 1, 120])], 1001)
    assert cut([]) == ([(0.0, 10.0, [])], 1001)


def test_the_slots_in_use_are_the_first(whispers):
    shape = WhisperCheckpoint.from_dir(whispers["multilingual"].path).shape
    cache = DecoderCache(shape, 3, torch.float32, "cpu")
    slots = [cache.acquire() for _ in range(3)]
    for slot in slots:
        cache.keys[:, slot.index] = cache.cross_values[:, slot.index] = slot.index + 1
    with pytest.raises(RuntimeError, match="all 3 slots"):
        cache.acquire()
    cache.release(slots[0])
    assert (slots[2].index, cache.num_used) == (0, 2)
    assert float(cache.keys[1, 0, 0, 0, 0]) == float(cache.cross_values[1, 0, 0, 0, 0]) == 3
    cache.release(slots[1])
    assert (slots[2].index, cache.acquire().index) == (0, 1)
