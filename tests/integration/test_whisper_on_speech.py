"""Whisper with real weights on what a real voice says: words, times, subtitles' order, and a batch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import soxr
from packaged_whisper import make_packaged_whisper
from transcription_runs import Transcribed, recording, transcribed

from sglang_omni.models.speech_chat.components.voice import Voice
from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
from sglang_omni.models.whisper.preprocess import WhisperPreprocessor
from sglang_omni.models.whisper.stages import create_transcribe
from sglang_omni.preprocessing.text import load_tokenizer

SENTENCES = (
    "The train to the coast leaves every morning at seven.",
    "My grandmother kept bees behind the old barn.",
    "Please put the blue folder on the second shelf.",
    "A small boat crossed the river before the storm began.",
    "The museum has a new hall with paintings from Holland.",
    "What is the capital of France?",
)
PAUSE = np.zeros(8_000, np.float32)


@pytest.fixture(scope="module")
def spoken() -> list[np.ndarray]:
    voice = Voice(num_threads=1)
    return [soxr.resample(voice.speak(text).samples, 24_000, 16_000).astype(np.float32) for text in SENTENCES]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_packaged_whisper(tmp_path_factory.mktemp("whisper") / "tiny.en")


def heard(checkpoint: Path, sounds: list[np.ndarray], **params: object) -> list[Transcribed]:
    preprocess = WhisperPreprocessor(
        WhisperCheckpoint.from_dir(checkpoint), load_tokenizer(checkpoint), max_bytes=1 << 26
    )
    scheduler = create_transcribe(str(checkpoint), num_threads=2, dtype="float32")
    return transcribed(preprocess, scheduler, [recording(sound) for sound in sounds], **params)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|7", text.lower().replace("seven", "7"))


def test_sentences_at_once_and_a_long_recording(checkpoint: Path, spoken: list[np.ndarray]) -> None:
    """Six sentences in one batch with forty seconds of them, which take two windows."""
    parts = [part for sound in [*spoken, *spoken, *spoken[:2]] for part in (sound, PAUSE)]
    long = np.concatenate(parts)
    assert len(long) > 35 * 16_000
    *short, whole = heard(checkpoint, [*spoken, long], language="en")
    for answer, sentence in zip(short, SENTENCES, strict=True):
        assert words(answer.result["text"]) == words(sentence)
        assert answer.streamed == answer.result["text"]
    said = [*SENTENCES, *SENTENCES, *SENTENCES[:2]]
    assert words(whole.result["text"]) == words(" ".join(said))
    assert whole.streamed == whole.result["text"]
    # Each sentence begins where it is said, to a second.
    ends = np.cumsum([len(part) for part in parts]) / 16_000
    starts = [0.0, *ends[1:-1:2]]
    found = {segment["text"]: segment for segment in whole.result["segments"]}
    for sentence, start in zip(said[-2:], starts[-2:], strict=True):
        own = [segment for text, segment in found.items() if words(sentence)[:4] == words(text)[:4]]
        assert any(abs(segment["start"] - start) < 1.0 for segment in own), (start, own)
    assert all(segment["no_speech_prob"] < 0.6 for segment in whole.result["segments"])


def test_a_prompt_sets_the_spelling(checkpoint: Path, spoken: list[np.ndarray]) -> None:
    plain, reported = (
        heard(checkpoint, [spoken[4]], **more)[0].result["text"]
        for more in ({}, {"prompt": "THE MUSEUM, HOLLAND."})
    )
    assert words(plain)[:6] == words(reported)[:6] == words(SENTENCES[4])[:6]
    assert reported != plain
