"""Whisper token for token as transformers' ``generate``: alone, in batches, in long recordings."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from transcription_runs import Transcribed, tones

LENGTHS = (5.3, 2.0, 7.1, 3.0, 3.5, 4.9, 1.2, 2.4)
SOUNDS = [tones(seed, seconds) for seed, seconds in enumerate(LENGTHS)]
ENGLISH = {"language": "en", "task": "transcribe"}


def told(answer: Transcribed):
    assert answer.error is None
    return [(each["start"], each["end"], each["tokens"]) for each in answer.result["segments"]]


def test_eight_recordings_at_once(whispers):
    """Recordings of one to four windows, which begin at different steps."""
    twins = whispers["multilingual"]
    expected = [twins.expected(sound, **ENGLISH) for sound in SOUNDS]
    assert len({token for pieces in expected for piece in pieces for token in piece.tokens}) > 30
    answers = twins.ours(SOUNDS, language="english")
    for answer, pieces, seconds in zip(answers, expected, LENGTHS, strict=True):
        assert told(answer) == pieces
        assert answer.result["duration"] == pytest.approx(seconds, abs=1e-3)
        assert answer.result["language"] == "en"
        # Joined, the deltas are the whole; and there are several, unless there is next to nothing to say.
        assert answer.streamed == answer.result["text"] != ""
        assert [each for chunk in answer.chunks for each in chunk.get("segments", ())] == answer.result[
            "segments"
        ]
    assert max(len(answer.chunks) for answer in answers) > 5


def test_one_slot_for_eight_recordings(whispers):
    """One after the other, in the same slot of the cache: nothing is left in it."""
    twins = whispers["multilingual"]
    together = twins.ours(SOUNDS, language="en")
    alone = twins.ours(SOUNDS, language="en", max_running_requests=1)
    three = twins.ours(SOUNDS, language="en", max_running_requests=3, windows_at_once=2)
    assert (
        [told(each) for each in alone] == [told(each) for each in together] == [told(each) for each in three]
    )


def test_language_of_the_first_window(whispers):
    twins = whispers["multilingual"]
    longer = [sound for sound, seconds in zip(SOUNDS, LENGTHS, strict=True) if seconds > 3]
    answers = twins.ours(longer)
    languages = set()
    for answer, sound in zip(answers, longer, strict=True):
        # Without a task, transformers leaves the choice of it to the model.
        assert told(answer) == twins.expected(sound, task="transcribe")
        token = int(twins.model.detect_language(twins.features(sound)[..., :300]))
        ids = twins.model.generation_config.lang_to_id
        assert ids[f"<|{answer.result['language']}|>"] == token
        languages.add(answer.result["language"])
    assert len(languages) > 1, "the test needs recordings in several languages"


def test_translation_and_prompt(whispers):
    twins = whispers["multilingual"]
    sounds = SOUNDS[:3]
    words = twins.tokenizer.encode(" the old house").ids
    before = [twins.model.generation_config.prev_sot_token_id, *words]
    import torch

    for task, name in (("translation", "translate"), ("transcription", "transcribe")):
        answers = twins.ours(sounds, task=task, language="de", prompt="the old house ")
        for answer, sound in zip(answers, sounds, strict=True):
            assert told(answer) == twins.expected(
                sound, language="de", task=name, prompt_ids=torch.tensor(before)
            )
            assert answer.result["language"] == "de"


def test_english_alone(whispers):
    twins = whispers["english"]
    for answer, sound in zip(twins.ours(SOUNDS[:4], language="English"), SOUNDS, strict=False):
        assert told(answer) == twins.expected(sound)
        assert answer.result["language"] == "en"


@pytest.mark.long
def test_windows_of_thirty_seconds(whispers):
    twins = whispers["window of 30 s"]
    sounds = [tones(20, 63.0), tones(21, 4.0)]
    for answer, sound in zip(twins.ours(sounds, language="en"), sounds, strict=True):
        assert told(answer) == twins.expected(sound, **ENGLISH)


def test_without_times(whispers):
    """Each window is a segment; transformers does no long recordings so."""
    twins = whispers["multilingual"]
    sounds = [sound for sound, seconds in zip(SOUNDS, LENGTHS, strict=True) if seconds <= 3]
    answers = twins.ours(sounds, language="en", timestamps=False)
    settings = twins.model.generation_config
    end, times = (
        settings.eos_token_id,
        range(settings.no_timestamps_token_id + 1, twins.model.config.vocab_size),
    )
    for answer, sound in zip(answers, sounds, strict=True):
        # transformers leaves times to the model's own habit.
        tokens = twins.model.generate(
            twins.features(sound), suppress_tokens=[*settings.suppress_tokens, *times], **ENGLISH
        )[0].tolist()
        assert told(answer) == [(0.0, round(len(sound) // 160 / 100, 3), [t for t in tokens if t != end])]
    long = twins.ours([SOUNDS[0]], language="en", timestamps=False)[0]
    assert [segment["start"] for segment in long.result["segments"]] == [0.0, 3.0]


def test_window_without_speech(whispers, tmp_path):
    """Skipped if the model finds both silence likely and its text unlikely, as transformers does."""
    twins = whispers["multilingual"]
    sounds = SOUNDS[:4]
    plain = twins.ours(sounds, language="en")
    # Between those of two windows.
    likely = sorted({each["no_speech_prob"] for answer in plain for each in answer.result["segments"]})
    silence = (likely[len(likely) // 2] + likely[len(likely) // 2 - 1]) / 2
    path = tmp_path / "doubtful"
    shutil.copytree(twins.path, path)
    generation = json.loads((path / "generation_config.json").read_text())
    generation |= {"no_speech_threshold": silence, "logprob_threshold": 0.0}
    (path / "generation_config.json").write_text(json.dumps(generation))
    doubtful = type(twins)(path)
    answers = doubtful.ours(sounds, language="en")
    for answer, sound in zip(answers, sounds, strict=True):
        assert told(answer) == doubtful.expected(
            sound, temperature=0.0, logprob_threshold=0.0, no_speech_threshold=silence, **ENGLISH
        )
        assert answer.streamed == answer.result["text"]
    assert 0 < sum(len(told(answer)) for answer in answers) < sum(len(told(answer)) for answer in plain)


def test_drawn_text_depends_on_the_seed_alone(whispers):
    twins = whispers["multilingual"]
    options = {"language": "en", "temperature": 0.8, "seed": 5}
    together = twins.ours(SOUNDS[:4], **options)
    for answer, sound in zip(together, SOUNDS, strict=False):
        assert told(answer) == told(twins.ours([sound], **options)[0])
        assert {segment["temperature"] for segment in answer.result["segments"]} == {0.8}
    assert told(together[2]) != told(twins.ours([SOUNDS[2]], **{**options, "seed": 6})[0])
    assert told(together[2]) != told(twins.ours([SOUNDS[2]], language="en")[0])


def test_silence_has_no_text(whispers):
    twins = whispers["multilingual"]
    quiet = np.zeros(4 * 16_000, np.float32)
    dither = (np.random.default_rng(0).integers(-1, 2, 48_000) / 32_768).astype(np.float32)
    after = np.concatenate([quiet[:49_600], SOUNDS[1]])
    answers = twins.ours([quiet, dither, after], language="en")
    for answer in answers[:2]:
        assert (answer.result["text"], answer.result["segments"]) == ("", [])
    assert answers[2].result["segments"][0]["start"] >= 3.0
