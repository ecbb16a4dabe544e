"""``sglang_omni.testing``: a pipeline that is wrong in one way of asking is caught, and in that way alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scripted_speller

from sglang_omni.testing import ALL_WAYS, Answer, Case, Timing, Way, check, difference, read_answer

CASES = [Case("hello"), Case("good night"), Case("hm")]


class Spelling:
    def answers(self, case: Case) -> Answer:
        return Answer(*scripted_speller.right(case.inputs))


class Silent:
    def answers(self, case: Case) -> None:
        return None


def test_a_right_pipeline_is_right_in_all_ways() -> None:
    report = check(scripted_speller.config(), Spelling(), CASES, at_once=4)
    assert report.ok, report
    assert [(row.way, row.cases, row.equal) for row in report.rows] == [
        (Way.ALONE, 3, 3),
        (Way.PREFIX, 3, 3),
        (Way.TOGETHER, 4, 4),
        (Way.ABORTED, 4, 4),
        (Way.STREAMED, 3, 3),
        (Way.CHUNKED, 4, 4),
        (Way.RETRACTED, 8, 8),
    ]
    notes = {row.way: row.note for row in report.rows if row.note}
    # Those that are aborted as they begin; the rest may be answered first.
    assert notes.keys() == {Way.ABORTED}
    assert int(notes[Way.ABORTED].removesuffix(" aborted")) >= 2
    lines = str(report).splitlines()
    assert lines[0].split() == ["way", "equal", "ms", "each", "ms", "a", "step"]
    assert lines[2].split()[:2] == ["alone", "3/3"]
    # A step is a frame: each case has one for a letter.
    frames = sum(len(scripted_speller.right(case.inputs)[1]) for case in CASES)
    alone = report.rows[0].timing
    assert (alone.answers, alone.steps) == (3, frames)
    assert (report.reference.answers, report.reference.steps) == (3, frames)
    assert str(Timing(2.0, 4, 100)).split() == ["500.0", "20.00"]
    assert str(Timing(2.0, 4, 0)).split() == ["500.0"]


@pytest.mark.parametrize(
    ("fault", "way"),
    [
        ("together", Way.TOGETHER),
        ("cached", Way.PREFIX),
        ("aborted", Way.ABORTED),
        ("streamed", Way.STREAMED),
        ("chunked", Way.CHUNKED),
        ("retracted", Way.RETRACTED),
    ],
)
def test_each_way_finds_what_is_wrong_in_it(fault: str, way: Way) -> None:
    found = check(scripted_speller.config(fault), Spelling(), CASES, [way])
    assert not found.ok
    assert {each.way for each in found.differences} == {way}


@pytest.mark.parametrize(
    ("fault", "reported"),
    [
        ("tokens", "case 1, alone: token 9 is 117, reference 116"),
        ("codes", "case 1, alone: code 1 of frame 1 is 113, reference 112"),
        ("samples", "case 1, alone: sample 2 is nan, reference 0.402344; 1 of 30 are off by more than 1e-05"),
        ("short", "case 1, alone: there are 29 samples, reference 30"),
        ("failure", "case 1, alone: RuntimeError: "),
        ("streamed", "case 1, streamed: its pieces: token 0 is 111, reference 103"),
    ],
)
def test_what_is_wrong_is_reported(fault: str, reported: str) -> None:
    report = check(scripted_speller.config(fault), Spelling(), CASES, [Way.STREAMED])
    assert any(line.startswith(reported) for line in str(report).splitlines()), report


def test_stages_may_run_in_processes_of_their_own() -> None:
    report = check(scripted_speller.config(), Spelling(), CASES, [Way.STREAMED], processes=True)
    assert report.ok, report
    assert report.answers == 6


def test_without_a_reference_the_answer_alone_is_right() -> None:
    """For requests with a seed."""
    assert check(scripted_speller.config(), Silent(), CASES, [Way.TOGETHER]).ok
    found = check(scripted_speller.config("together"), Silent(), CASES, [Way.TOGETHER])
    assert {each.way for each in found.differences} == {Way.TOGETHER}


def test_what_cannot_be_asked_is_reported() -> None:
    report = check(scripted_speller.config(factory="create_plain"), Spelling(), CASES)
    assert report.ok
    notes = {row.way: row.note for row in report.rows if row.way in (Way.CHUNKED, Way.RETRACTED)}
    assert notes == {
        Way.CHUNKED: "not asked: no stage takes chunked_prefill_size",
        Way.RETRACTED: "not asked: no stage takes max_total_tokens",
    }
    with pytest.raises(ValueError, match="no cases"):
        check(scripted_speller.config(), Spelling(), [])


def test_an_answer_is_read_from_one_stage_or_several() -> None:
    whole = {"text": "a", "token_ids": [1], "audio_data": np.zeros((1, 2))}
    one = read_answer(whole)
    two = read_answer({"decode": {"text": "a", "token_ids": [1]}, "wave": {"audio_data": np.zeros(2)}})
    for answer in (one, two):
        assert (answer.text, answer.tokens, answer.codes) == ("a", [1], None)
        assert answer.samples is not None
        assert answer.samples.shape == (2,)
    assert read_answer(None) == Answer()


def test_what_the_reference_says_must_be_there() -> None:
    assert difference(Answer(), Answer(tokens=[])) == "there are no tokens"
    assert difference(Answer(), Answer(samples=np.zeros(0))) == "there are no samples"
    assert difference(Answer(tokens=[1]), Answer()) == ""
    assert difference(Answer(tokens=[1]), Answer(tokens=[1, 2])) == "there are 1 tokens, reference 2"
    assert difference(Answer(codes=[[1]]), Answer(codes=[[1, 2]])) == "code 1 of frame 0 is none, reference 2"
    assert difference(Answer(text="b"), Answer(text="a")) == "the text is 'b', reference 'a'"
    near = Answer(samples=np.float32([0.5]))
    assert difference(Answer(samples=np.float32([0.502])), near, samples_atol=0.01) == ""
    assert difference(Answer(samples=np.float32([0.502])), near).startswith(
        "sample 0 is 0.502, reference 0.5"
    )


def test_it_needs_no_pytest() -> None:
    code = "import sys, sglang_omni.testing; print(*{'pytest', 'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    assert len(ALL_WAYS) == 7
