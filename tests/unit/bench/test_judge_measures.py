"""Figures of turns, from events that are made by hand: what was said, and what came when."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest

from sglang_omni.bench.clips import RATE
from sglang_omni.bench.judge import measures
from sglang_omni.bench.judge.recording import Said, SessionRecording
from sglang_omni.bench.judge.words import words_lost, words_of
from sglang_omni.bench.realtime_events import SOUND

Timed = tuple[float, dict[str, Any]]
QUESTION = Said(0.0, 2.0, "What colour is the sea?")


def recorded(*events: Timed) -> SessionRecording:
    recording = SessionRecording()
    for now, event in events:
        recording.take(now, event)
    return recording


def created(now: float, response: str = "r1") -> Timed:
    return now, {"type": "response.created", "response": {"id": response}}


def done(now: float, response: str = "r1", status: str = "completed") -> Timed:
    return now, {"type": "response.done", "response": {"id": response, "status": status}}


def sound(now: float, *parts: float, response: str = "r1", kind: str = SOUND[0]) -> Timed:
    """A piece whose parts, in seconds, are loud and silent in turn; the first is loud."""
    levels = [np.full(round(seconds * RATE), 8000 * (place % 2 == 0)) for place, seconds in enumerate(parts)]
    delta = base64.b64encode(np.concatenate(levels).astype("<i2").tobytes()).decode()
    return now, {"type": kind, "delta": delta, "response_id": response, "item_id": f"item of {response}"}


def started(now: float) -> Timed:
    return now, {"type": "input_audio_buffer.speech_started", "item_id": "i"}


def committed(now: float, item: str) -> Timed:
    return now, {"type": "input_audio_buffer.committed", "item_id": item}


def transcript(now: float, item: str, text: str) -> Timed:
    kind = "conversation.item.input_audio_transcription.completed"
    return now, {"type": kind, "item_id": item, "transcript": text}


def test_first_sound_is_the_first_that_can_be_heard() -> None:
    recording = recorded(created(2.5), sound(2.6, 0.0, 0.4, 0.5), sound(2.7, 1.0))
    assert measures.answer_to(recording, QUESTION) == "r1"
    assert measures.first_sound(recording, QUESTION, "r1") == pytest.approx(1.0)


@pytest.mark.parametrize("kind", SOUND)
def test_both_names_of_sound(kind: str) -> None:
    recording = recorded(created(2.5), sound(2.6, 1.0, kind=kind))
    assert measures.first_sound(recording, QUESTION, "r1") == pytest.approx(0.6)


def test_an_answer_begins_after_its_turn_does() -> None:
    """The story before is still played when the question is over."""
    story = [created(-1.0), sound(0.0, 3.0)]
    assert measures.answer_to(recorded(*story), QUESTION) is None
    recording = recorded(*story, created(2.5, "r2"), sound(2.6, 1.0, response="r2"))
    assert measures.answer_to(recording, QUESTION) == "r2"
    # The listener plays one behind the other.
    assert measures.first_sound(recording, QUESTION, "r2") == pytest.approx(1.0)


def test_an_answer_to_half_a_turn_is_none() -> None:
    """The server took a pause for the end, and dropped what it had begun when the user went on."""
    recording = recorded(created(0.8), sound(0.9, 5.0), started(1.2), done(1.2, status="cancelled"))
    assert measures.answer_to(recording, QUESTION) is None
    assert measures.talk_over(recording, [QUESTION]) == pytest.approx(0.3)


def test_silence_comes_when_the_listener_drops_what_it_has() -> None:
    interruption = Said(4.0, 5.0, None)
    answer = [created(2.5), sound(3.0, 5.0)]
    assert measures.silence(recorded(*answer, started(4.25)), interruption, "r1") == pytest.approx(0.25)
    # Nothing told the listener: it plays on to the end.
    assert measures.silence(recorded(*answer, done(4.1)), interruption, "r1") == pytest.approx(4.0)
    # What the server sends after it noticed is played, too.
    late = [started(4.25), sound(4.5, 0.5)]
    assert measures.silence(recorded(*answer, *late), interruption, "r1") == pytest.approx(1.0)
    assert measures.silence(recorded(created(2.5), sound(3.0, 0.5)), interruption, "r1") == 0.0


def test_a_pause_in_an_answer_is_silence() -> None:
    recording = recorded(created(2.5), sound(3.0, 0.5, 4.0), started(4.25))
    assert measures.silence(recording, Said(4.0, 5.0, None), "r1") == 0.0


def test_talk_over_is_what_both_say_at_once() -> None:
    interruption = Said(4.0, 5.0, None)
    recording = recorded(created(1.5), sound(1.5, 1.0, 0.5, 4.0), started(4.75))
    assert measures.talk_over(recording, [QUESTION]) == pytest.approx(0.5)
    assert measures.talk_over(recording, [QUESTION, interruption]) == pytest.approx(1.25)


def test_gaps_are_where_the_listener_has_nothing_to_play() -> None:
    pieces = [sound(3.0, 0.5), sound(3.2, 0.5), sound(4.4, 0.5), sound(5.0, 0.1)]
    assert measures.gaps(recorded(*pieces), "r1") == pytest.approx(0.4 + 0.1)
    # Between two answers is no gap, nor where the listener had dropped the sound.
    assert measures.gaps(recorded(pieces[0], sound(9.0, 1.0, response="r2")), "r1") == 0.0
    assert measures.gaps(recorded(pieces[0], started(3.2), pieces[3]), "r1") == 0.0


def test_what_is_dropped() -> None:
    recording = recorded(sound(3.0, 0.5), sound(3.1, 0.5), sound(3.2, 0.5), started(3.75))
    [drop] = recording.listener.drops
    assert (drop.seconds, drop.item_seconds) == (pytest.approx(0.75), pytest.approx(0.75))
    assert drop.item == "item of r1"
    assert [(played.start, played.end) for played in recording.listener.played] == [(3.0, 3.5), (3.5, 3.75)]
    assert measures.audible_spans(recording) == [(3.0, 3.5), (3.5, 3.75)]
    recording.take(*started(5.0))
    assert (recording.listener.drops[1].seconds, recording.listener.drops[1].item) == (0.0, None)


@pytest.mark.parametrize(
    ("events", "stopped"),
    [
        ([], False),
        ([started(4.5)], True),
        # It was being made, and not yet played.
        ([done(4.5, status="cancelled")], True),
        ([done(4.5)], False),
        # A detector is late, but not by so much.
        ([started(6.2)], True),
        ([started(6.4)], False),
        ([started(3.9)], False),
    ],
)
def test_stops(events: list[Timed], stopped: bool) -> None:
    recording = recorded(created(2.5), sound(3.0, 9.0), *events)
    assert measures.was_stopped(recording, "r1", 4.0, 5.3) is stopped


def test_a_listener_with_nothing_to_drop_is_not_stopped() -> None:
    recording = recorded(created(2.5), sound(3.0, 1.0), done(3.0), started(4.5))
    assert not measures.was_stopped(recording, "r1", 4.2, 5.0)


def test_what_comes_after_an_answer_does_not_disturb_it() -> None:
    answer = [created(2.5), sound(3.0, 1.0)]
    assert measures.is_under_way(recorded(*answer, done(3.1)), "r1", 3.9)
    assert not measures.is_under_way(recorded(*answer, done(3.1)), "r1", 4.1)
    # It is still being made.
    assert measures.is_under_way(recorded(*answer), "r1", 9.0)
    assert measures.is_under_way(recorded(*answer, done(9.1)), "r1", 9.0)


@pytest.mark.parametrize(
    ("text", "transcript", "lost"),
    [
        ("What colour is the sea?", "What color is the sea", 1),
        ("What colour is the sea?", "what colour, is THE sea!", 0),
        ("What colour is the sea?", "", 5),
        ("What colour is the sea?", "is the", 3),
        # Words besides cost nothing; their order counts.
        ("one two three", "zero one and two or three four", 0),
        ("one two three", "three two one", 2),
        ("don't stop", "don’t stop", 0),
        ("", "anything", 0),
    ],
)
def test_words_lost(text: str, transcript: str, lost: int) -> None:
    assert words_lost(text, transcript) == lost


def test_words_have_no_marks() -> None:
    assert words_of("Well, “don’t” — 24 Über-Tests_!") == ["well", "don't", "24", "über", "tests"]


def test_words_are_those_of_the_turns_own_time() -> None:
    """One turn in two items, whose transcripts come late and in the wrong order; then another turn."""
    recording = recorded(
        committed(1.0, "a"),
        committed(2.5, "b"),
        transcript(3.0, "b", "is the sea"),
        transcript(8.0, "a", "what colour"),
        committed(7.0, "c"),
        transcript(7.5, "c", "and why"),
    )
    assert measures.lost(recording, "What colour is the sea?", 0.0, 6.0) == 0
    assert measures.lost(recording, "What colour is the sea?", 6.0, math.inf) == 5
    assert measures.lost(recording, "And why?", 6.0, math.inf) == 0


def test_overlap() -> None:
    assert measures.overlap([(0, 2), (3, 5)], [(1, 4), (4.5, 9)]) == pytest.approx(1 + 1 + 0.5)
    assert measures.overlap([(0, 1)], [(1, 2)]) == 0
