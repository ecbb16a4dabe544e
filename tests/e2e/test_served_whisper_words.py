"""Whisper tiny.en with its real weights, served by its id, on thirty spoken sentences, three in a recording.

Each recording costs a window of thirty seconds, however short it is. What Whisper writes is compared with
transformers on the same weights, token for token and word for word in time; and with the demo's own ears,
which have the same weights too: how many words each gets wrong.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from packaged_whisper import make_packaged_whisper
from published_repositories import with_decoys
from published_server import served
from transcription_runs import RATE, recording
from whisper_twins import WhisperTwins

from sglang_omni.models.speech_chat.components.voice import Voice
from sglang_omni.models.speech_chat.components.whisper import Whisper

pytestmark = pytest.mark.long
SENTENCES = (
    "The train to the coast leaves every morning.",
    "My grandmother kept bees behind the old barn.",
    "Please put the blue folder on the second shelf.",
    "A small boat crossed the river before the storm began.",
    "The museum has a new hall with paintings from Holland.",
    "What is the capital of France?",
    "She forgot her umbrella in the library again.",
    "Our neighbors planted three apple trees last spring.",
    "The children were playing football in the park.",
    "He opened the window because the room was too warm.",
    "Fresh bread and strong coffee make a good breakfast.",
    "The doctor told him to walk for an hour every day.",
    "Nobody knew who had written the letter.",
    "We should leave early to avoid the heavy traffic.",
    "The bridge was closed for repairs during the summer.",
    "Can you tell me where the nearest station is?",
    "The orchestra played for two hours without a break.",
    "A thick fog covered the valley in the morning.",
    "They painted the kitchen yellow and the hall green.",
    "The teacher explained the problem on the blackboard.",
    "It takes a long time to learn a foreign language.",
    "The fisherman sold his catch at the market.",
    "There is a bakery around the corner from our house.",
    "Her brother works as an engineer in a small town.",
    "The mountains were covered with snow until May.",
    "I would like a glass of water, please.",
    "The old clock on the wall stopped at midnight.",
    "Several trees fell on the road during the night.",
    "The meeting was moved to Thursday afternoon.",
    "Birds build their nests in the tall grass by the lake.",
)
# What each recording says.
TEXTS = [" ".join(SENTENCES[at : at + 3]) for at in range(0, len(SENTENCES), 3)]
MOST_WRONG = 0.05
TINY = "openai/whisper-tiny.en"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def wrong(said: str, heard: str) -> int:
    """Words to change, to leave out or to add, so that one text becomes the other."""
    row = list(range(len(words(heard)) + 1))
    for index, word in enumerate(words(said), 1):
        before, row[0] = row[0], index
        for at, other in enumerate(words(heard), 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (word != other))
    return row[-1]


@pytest.fixture(scope="module")
def spoken() -> list[np.ndarray]:
    voice = Voice(num_threads=1)
    return [soxr.resample(voice.speak(text).samples, 24_000, RATE).astype(np.float32) for text in SENTENCES]


@pytest.fixture(scope="module")
def recordings(spoken: list[np.ndarray]) -> list[np.ndarray]:
    return [np.concatenate(spoken[at : at + 3]) for at in range(0, len(spoken), 3)]


@pytest.fixture(scope="module")
def noisy(recordings: list[np.ndarray]) -> list[np.ndarray]:
    """The recordings in white noise as loud as half of them: words are misheard."""
    draw = np.random.default_rng(0)
    return [
        (sound + 0.5 * sound.std() * draw.standard_normal(len(sound))).astype(np.float32)
        for sound in recordings
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_decoys(make_packaged_whisper(tmp_path_factory.mktemp("whisper") / "tiny.en"), TINY)


@pytest.fixture(scope="module")
def answers(checkpoint: Path, recordings: list[np.ndarray], noisy: list[np.ndarray]) -> list[dict[str, Any]]:
    """Of the recordings, of all of them in one, and of each in noise."""
    with served(checkpoint.parent, TINY, checkpoint, "--stage", "transcribe.dtype=float32") as client:

        def transcribed(sound: np.ndarray) -> dict[str, Any]:
            return client.audio.transcriptions.create(
                model=TINY,
                file=("a.wav", recording(sound)),
                response_format="verbose_json",
                timestamp_granularities=["segment", "word"],
            ).to_dict()

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(transcribed, [*recordings, np.concatenate(recordings), *noisy]))


def test_tokens_and_times_are_those_of_transformers(
    checkpoint: Path, recordings: list[np.ndarray], answers: list[dict[str, Any]]
) -> None:
    twins = WhisperTwins(checkpoint)
    words_at = 0
    for sound, answer in zip([*recordings, np.concatenate(recordings)], answers, strict=False):
        assert {segment["temperature"] for segment in answer["segments"]} == {0.0}
        pieces = twins.written(sound, return_token_timestamps=True)
        expected = [piece.reported for piece in pieces if twins.text(piece.tokens)]
        assert [(each["start"], each["end"], each["tokens"]) for each in answer["segments"]] == expected
        # A word begins at the time of the token before it, and ends at that of its own last one.
        tokens = [
            (twins.text([token]) if token < 50_256 else "", time)
            for piece in pieces
            for token, time in zip(piece.tokens, piece.token_times, strict=True)
        ]
        assert "".join(word["word"] for word in answer["words"]) == "".join(
            text.strip() for text, _ in tokens
        ).replace(" ", "")
        at = 0
        for word in answer["words"]:
            while not tokens[at][0]:
                at += 1
            assert word["start"] == pytest.approx(tokens[at - 1][1], abs=0.006), word
            left = word["word"]
            while left:
                left = left.removeprefix(tokens[at][0])
                at += 1
            assert word["end"] == pytest.approx(tokens[at - 1][1], abs=0.006), word
            words_at += 1
    assert words_at > 400


def test_as_few_words_are_wrong_as_the_demo_has(
    recordings: list[np.ndarray],
    noisy: list[np.ndarray],
    answers: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The demo searches beams, and its weights have eight bits; both count little."""
    ears = Whisper(num_threads=2)
    said = sum(len(words(text)) for text in TEXTS)
    one = wrong(" ".join(TEXTS), answers[len(TEXTS)]["text"])
    rates = {}
    for what, sounds, found in (
        ("clean", recordings, answers[: len(TEXTS)]),
        ("in noise", noisy, answers[len(TEXTS) + 1 :]),
    ):
        texts = [answer["text"] for answer in found]
        demo = [" ".join(segment.text for segment in ears.segments(sound)) for sound in sounds]
        rates[what] = [sum(map(wrong, TEXTS, heard)) / said for heard in (texts, demo)]
    with capsys.disabled():
        print(f"\nword error rates of {said} words: {one / said:.1%} in one recording")
        for what, (ours, demos) in rates.items():
            print(f"{what}: {ours:.1%} served, {demos:.1%} by the demo's ears")
    assert max(*rates["clean"], one / said) < MOST_WRONG
    assert all(ours <= demos + MOST_WRONG for ours, demos in rates.values())
    assert rates["in noise"][0] > rates["clean"][0]


def test_words_are_heard_where_they_are_said(spoken: list[np.ndarray], answers: list[dict[str, Any]]) -> None:
    """In a recording of several windows: the words of a sentence begin within it, to half a second."""
    ends = np.cumsum([len(sound) for sound in spoken]) / RATE
    found, at = answers[len(TEXTS)]["words"], 0
    assert ends[-1] > 60
    starts = [word["start"] for word in found]
    assert starts == sorted(starts)
    for sentence, start, end in zip(SENTENCES, [0.0, *ends], ends, strict=False):
        count = len(words(sentence))
        assert start - 0.5 < starts[at] <= starts[at + count - 1] < end + 0.5, sentence
        at += count
    assert at == len(found)
