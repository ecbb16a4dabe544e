"""Figures of a turn, as pure functions of a recording. All times are seconds of the recording's clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sglang_omni.bench.judge.listener import Span
from sglang_omni.bench.judge.recording import Said, SessionRecording
from sglang_omni.bench.judge.words import words_lost, words_of

# A detector of turns may notice something this long after it was over.
NOTICED_LATE_S = 1.0


def answer_to(recording: SessionRecording, said: Said) -> str | None:
    """The id of the response that answers what was said: the first one to be heard after it.

    A response that was announced before the user spoke is no answer to it.
    """
    for played in recording.listener.played:
        begun = recording.answers[played.response].created >= said.start
        if begun and any(end > said.end for _, end in played.audible):
            return played.response
    return None


def first_sound(recording: SessionRecording, said: Said, response: str) -> float:
    """Seconds from the end of what was said until the response is heard; 0 if it is heard before that."""
    starts = [start for start, end in audible_spans(recording, response) if end > said.end]
    return max(0.0, starts[0] - said.end)


def silence(recording: SessionRecording, interruption: Said, response: str) -> float:
    """Seconds from the first sample of an interruption to the last that is heard of the response."""
    return max(0.0, max(end for _, end in audible_spans(recording, response)) - interruption.start)


def talk_over(recording: SessionRecording, said: Sequence[Said]) -> float:
    """Seconds in which an answer is heard while the user speaks."""
    return overlap(audible_spans(recording), [(each.start, each.end) for each in said])


def gaps(recording: SessionRecording, response: str) -> float:
    """Seconds in which the listener had nothing to play between the response's first and last piece.

    After the listener has dropped sound, what comes of the response is no part of this any more.
    """
    played = [each for each in recording.listener.played if each.response == response]
    dropped = min((drop.at for drop in recording.listener.drops if drop.response == response), default=None)
    return sum(
        after.start - before.end
        for before, after in pairwise(played)
        if dropped is None or after.start < dropped
    )


def is_under_way(recording: SessionRecording, response: str, at: float) -> bool:
    """True if the response was being made or played at a time, or dropped after it."""
    done = recording.answers[response].done
    return done is None or done > at or any(end > at for _, end in audible_spans(recording, response))


def was_stopped(recording: SessionRecording, response: str, start: float, end: float) -> bool:
    """True if the response was cancelled, or its sound dropped, from ``start`` to a moment after ``end``."""
    until = end + NOTICED_LATE_S
    answer = recording.answers[response]
    if answer.status == "cancelled" and answer.done is not None and start <= answer.done <= until:
        return True
    return any(drop.response == response and start <= drop.at <= until for drop in recording.listener.drops)


def lost(recording: SessionRecording, text: str, start: float, end: float) -> int:
    """How many words of ``text`` are missing in the transcripts of what was committed in a time."""
    written = [
        recording.transcripts.get(item, "") for item, at in recording.items.items() if start <= at < end
    ]
    return words_lost(text, " ".join(written))


def num_words(text: str) -> int:
    return len(words_of(text))


def audible_spans(recording: SessionRecording, response: str | None = None) -> list[Span]:
    """When a response is heard, or any, in order; touching spans are not joined."""
    return [
        span
        for played in recording.listener.played
        if response in (None, played.response)
        for span in played.audible
    ]


def overlap(first: Sequence[Span], second: Sequence[Span]) -> float:
    """Seconds that are in a span of each. Spans of one sequence must not overlap each other."""
    return sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in first
        for other_start, other_end in second
    )
