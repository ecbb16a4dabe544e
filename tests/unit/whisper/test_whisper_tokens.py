"""Whisper token for token as transformers' ``generate``: alone, in batches, in long recordings."""

from __future__ import annotations

import json
import shutil
from itertools import cycle

import numpy as np
import pytest
from transcription_runs import Transcribed, tones

LENGTHS = (5.3, 2.0, 7.1, 3.0, 3.5, 4.9, 1.2, 2.4)
SOUNDS = [tones(seed, seconds) for seed, seconds in enumerate(LENGTHS)]
ENGLISH = {"language": "en", "task": "transcribe"}


def reported(answer: Transcribed):
    assert answer.error is None
    return [(each["start"], each["end"], each["tokens"]) for each in answer.result["segments"]]


def test_eight_recordings_at_once(whispers):
    """Recordings of one to four windows, which begin at different steps."""
    twins = whispers["multilingual"]
    expected = [twins.expected(sound, **ENGLISH) for sound in SOUNDS]
    assert len({token for pieces in expected for *_, tokens in pieces for token in tokens}) > 30
    answers = twins.ours(SOUNDS, language="english")
    for answer, pieces, seconds in zip(answers, expected, LENGTHS, strict=True):
        assert reported(answer) == pieces
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
        [reported(each) for each in alone]
        == [reported(each) for each in together]
        == [reported(each) for each in three]
    )


def test_language_of_the_first_window(whispers):
    twins = whispers["multilingual"]
    longer = [sound for sound, seconds in zip(SOUNDS, LENGTHS, strict=True) if seconds > 3]
    answers = twins.ours(longer)
    languages = set()
    for answer, sound in zip(answers, longer, strict=True):
        # Without a task, transformers leaves the choice of it to the model.
        assert reported(answer) == twins.expected(sound, task="transcribe")
        token = int(twins.model.detect_language(twins.features(sound)[..., :300]))
        ids = twins.model.generation_config.lang_to_id
        assert ids[f"<|{answer.result['language']}|>"] == token
        languages.add(answer.result["language"])
    assert len(languages) > 1, "the test needs recordings in several languages"


def test_translation_and_prompt(whispers):
    twins = whispers["multilingual"]
    sounds = SOUNDS[:3]
    words = twins.tokenizer.encode(" the old house", add_special_tokens=False).ids
    before = [twins.model.generation_config.prev_sot_token_id, *words]
    import torch

    for task, name in (("translation", "translate"), ("transcription", "transcribe")):
        answers = twins.ours(sounds, task=task, language="de", prompt="the old house ")
        for answer, sound in zip(answers, sounds, strict=True):
            assert reported(answer) == twins.expected(
                sound, language="de", task=name, prompt_ids=torch.tensor(before)
            )
            assert answer.result["language"] == "de"


def test_english_alone(whispers):
    twins = whispers["english"]
    for answer, sound in zip(twins.ours(SOUNDS[:4], language="English"), SOUNDS, strict=False):
        assert reported(answer) == twins.expected(sound)
        assert answer.result["language"] == "en"


@pytest.mark.long
def test_windows_of_thirty_seconds(whispers):
    twins = whispers["window of 30 s"]
    sounds = [tones(20, 63.0), tones(21, 4.0)]
    for answer, sound in zip(twins.ours(sounds, language="en"), sounds, strict=True):
        assert reported(answer) == twins.expected(sound, **ENGLISH)


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
        assert reported(answer) == [(0.0, round(len(sound) // 160 / 100, 3), [t for t in tokens if t != end])]
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
        assert reported(answer) == doubtful.expected(
            sound, temperature=0.0, logprob_threshold=0.0, no_speech_threshold=silence, **ENGLISH
        )
        assert answer.streamed == answer.result["text"]
    assert (
        0 < sum(len(reported(answer)) for answer in answers) < sum(len(reported(answer)) for answer in plain)
    )


def test_drawn_text_depends_on_the_seed_alone(whispers):
    twins = whispers["multilingual"]
    options = {"language": "en", "temperature": 0.8, "seed": 5}
    together = twins.ours(SOUNDS[:4], **options)
    for answer, sound in zip(together, SOUNDS, strict=False):
        assert reported(answer) == reported(twins.ours([sound], **options)[0])
        assert {segment["temperature"] for segment in answer.result["segments"]} == {0.8}
    assert reported(together[2]) != reported(twins.ours([SOUNDS[2]], **{**options, "seed": 6})[0])
    assert reported(together[2]) != reported(twins.ours([SOUNDS[2]], language="en")[0])


def doubtful_if_below(twins, path, threshold):
    """The same checkpoint, whose windows are written again below that mean log-probability, silent or not."""
    shutil.copytree(twins.path, path)
    file = path / "generation_config.json"
    settings = {"logprob_threshold": threshold, "no_speech_threshold": 1.0}
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return type(twins)(path)


def test_doubtful_windows_are_written_again(whispers, tmp_path):
    """At rising temperatures until they are likely enough, and always to the same text; others stay."""
    twins = whispers["english"]
    sounds = [tones(seed, 2.9) for seed in range(30, 42)]
    plain = twins.ours(sounds, language="en")
    first = [answer.result["segments"][0] for answer in plain]
    threshold = sorted(each["avg_logprob"] for each in first)[6] - 1e-4
    doubtful = doubtful_if_below(twins, tmp_path / "doubtful", threshold)
    answers = doubtful.ours(sounds, language="en", fallback=True)
    temperatures = set()
    for answer, likeliest in zip(answers, first, strict=True):
        assert answer.streamed == answer.result["text"]
        written = answer.result["segments"][0]
        if likeliest["avg_logprob"] >= threshold and likeliest["compression_ratio"] <= 2.4:
            assert (written["tokens"], written["temperature"]) == (likeliest["tokens"], 0.0)
        elif written["temperature"] < 1.0:
            assert (written["avg_logprob"], 2.4) >= (threshold, written["compression_ratio"])
        temperatures.add(written["temperature"])
    assert {0.0, 1.0} <= temperatures <= {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}
    again = doubtful.ours(sounds[::-1], language="en", fallback=True, max_running_requests=3)
    assert [reported(each) for each in again[::-1]] == [reported(each) for each in answers]
    seeded = doubtful.ours(sounds, language="en", fallback=True, seed=1)
    assert [reported(each) for each in seeded] != [reported(each) for each in answers]
    # A request's own temperature is the only one.
    drawn = doubtful.ours(sounds, language="en", fallback=True, temperature=0.1)
    assert {each["temperature"] for answer in drawn for each in answer.result["segments"]} == {0.1}


def test_repetitions_are_written_again(whispers, tmp_path, monkeypatch):
    """At each temperature in turn; if even the last one repeats itself, its text is taken."""
    from sglang_omni.models.whisper import transcribe
    from sglang_omni.models.whisper.components import fallback

    # Whose texts are all likely enough.
    twins = doubtful_if_below(whispers["english"], tmp_path / "likely", -99.0)
    (answer,) = twins.ours(SOUNDS[3:4], language="en", fallback=True)
    assert answer.streamed == answer.result["text"]
    for each in answer.result["segments"]:
        assert each["compression_ratio"] <= 2.4 or each["temperature"] == 1.0
    monkeypatch.setattr(fallback, "_MOST_COMPRESSION", 0.01)
    (answer,) = twins.ours(SOUNDS[3:4], language="en", fallback=True)
    assert {each["temperature"] for each in answer.result["segments"]} == {1.0}
    doubts = cycle([True, True, False])
    monkeypatch.setattr(transcribe, "is_doubtful", lambda *_: next(doubts))
    (answer,) = twins.ours(SOUNDS[3:4], language="en", fallback=True)
    assert {each["temperature"] for each in answer.result["segments"]} == {0.4}


@pytest.mark.parametrize("fallback", [False, True])
def test_text_is_sent_once_it_is_settled(whispers, tmp_path, fallback):
    """With each token, or with each window that may be written again."""
    likely = doubtful_if_below(whispers["english"], tmp_path / "likely", -99.0)
    sounds = [tones(seed, 2.9) for seed in range(30, 34)]
    answers = likely.ours(sounds, language="en", fallback=fallback)
    windows = sum(len({each["seek"] for each in answer.result["segments"]}) for answer in answers)
    sent = sum(bool(chunk["text"]) for answer in answers for chunk in answer.chunks)
    # The last piece may come at the end of all.
    assert (sent > windows + len(sounds)) is not fallback
    assert [answer.streamed for answer in answers] == [answer.result["text"] for answer in answers]


def test_config_forces_no_language(whispers, tmp_path):
    """Old conversions name English in config.json; transformers, given a task, does not look there either."""
    twins = whispers["multilingual"]
    path = tmp_path / "tuned"
    shutil.copytree(twins.path, path)
    ids = twins.model.generation_config
    forced = [[1, ids.lang_to_id["<|en|>"]], [2, ids.task_to_id["transcribe"]]]
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"forced_decoder_ids": forced}))
    tuned = type(twins)(path)
    sounds = [SOUNDS[0], SOUNDS[2], SOUNDS[4], SOUNDS[5]]
    answers = tuned.ours(sounds)
    for answer, sound in zip(answers, sounds, strict=True):
        assert reported(answer) == tuned.expected(sound, task="transcribe")
    assert {answer.result["language"] for answer in answers} - {"en"}


def test_silence_has_no_text(whispers):
    twins = whispers["multilingual"]
    quiet = np.zeros(4 * 16_000, np.float32)
    dither = (np.random.default_rng(0).integers(-1, 2, 48_000) / 32_768).astype(np.float32)
    after = np.concatenate([quiet[:49_600], SOUNDS[1]])
    answers = twins.ours([quiet, dither, after], language="en")
    for answer in answers[:2]:
        assert (answer.result["text"], answer.result["segments"]) == ("", [])
    assert answers[2].result["segments"][0]["start"] >= 3.0
