"""A user's side of one session: turns, what happens during their answers, and the judgement of both."""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import dataclass
from itertools import pairwise

from sglang_omni.bench.judge import measures
from sglang_omni.bench.judge.cast import Cast
from sglang_omni.bench.judge.judged import Judged
from sglang_omni.bench.judge.recording import Said
from sglang_omni.bench.judge.scenarios import Scenario
from sglang_omni.bench.judge.session import JudgedSession
from sglang_omni.bench.outcome import CallFailed, Outcome

# A turn whose answer is not announced for so long after its end was missed.
_NOTICED_S = 10.0
# How much of an answer is heard before something happens during it.
_INTO_ANSWER_S = (0.5, 1.5)
_BETWEEN_TURNS_S = 0.3
_TRANSCRIPTS_S = 5.0


@dataclass
class _Turn:
    """
    Attributes:
        answer: The id of the response that answers it; None if none does.
        during: What was said while the answer was played.
        interrupts: True if it was said while another answer was played.
    """

    said: Said
    outcome: Outcome
    interrupts: bool
    answer: str | None = None
    during: Said | None = None


class JudgedTalk:
    """
    Args:
        outcomes: Get one for each turn of the user's; hold that of the first already.
        chance: Decides when something happens during an answer.
        timeout_s: The most seconds for an answer.
    """

    def __init__(
        self,
        session: JudgedSession,
        scenario: Scenario,
        cast: Cast,
        outcomes: list[Outcome],
        chance: random.Random,
        timeout_s: float,
    ) -> None:
        self._session = session
        self._recording = session.recording
        self._scenario = scenario
        self._cast = cast
        self._outcomes = outcomes
        self._chance = chance
        self._timeout_s = timeout_s
        self._turns: list[_Turn] = []

    async def turn(self, number: int) -> None:
        """Speaks, listens to the answer, and waits until both are silent.

        Args:
            number: Of the turn, which decides what is said.

        Raises:
            CallFailed: The session has ended, or an answer does not.
        """
        turn = await self._speaks(number, interrupts=False)
        if await self._is_answered(turn) and self._scenario.during_answer is not None:
            await self._disturb(turn, number)
        ends = time.perf_counter() + self._timeout_s
        while self._recording.is_answering or self._recording.listener.dry_at > time.perf_counter():
            left = ends - time.perf_counter()
            if not await self._session.until(lambda: not self._recording.is_answering, left):
                raise CallFailed("timeout", "no end of the answer within --timeout")
            await self._session.pause(self._recording.listener.dry_at)
        await self._session.pause(time.perf_counter() + _BETWEEN_TURNS_S)

    async def transcripts(self) -> None:
        """Waits a moment for the transcripts that are missing.

        Raises:
            CallFailed: The session has ended.
        """
        await self._session.until(
            lambda: self._recording.items.keys() <= self._recording.transcripts.keys(), _TRANSCRIPTS_S
        )

    def judge(self, *, transcribes: bool) -> None:
        """Fills the outcomes of all turns so far.

        Args:
            transcribes: True if the server was to write down what it hears.
        """
        recording = self._recording
        # A server may take the setting and never write anything.
        transcribes &= bool(recording.transcripts) or not recording.items
        starts = [*(turn.said.start for turn in self._turns), math.inf]
        for turn, (start, end) in zip(self._turns, pairwise(starts), strict=True):
            judged = turn.outcome.judged = Judged(self._scenario.name)
            if transcribes and turn.said.text is not None:
                judged.words = measures.num_words(turn.said.text)
                judged.words_lost = measures.lost(recording, turn.said.text, start, end)
            if not turn.interrupts:
                spoken = [turn.said]
                if turn.during is not None and not self._scenario.goes_on:
                    spoken.append(turn.during)
                judged.talk_over = measures.talk_over(recording, spoken)
            if turn.answer is not None:
                self._judge_answer(turn, turn.answer, judged)

    def _judge_answer(self, turn: _Turn, answer: str, judged: Judged) -> None:
        recording, during, outcome = self._recording, turn.during, turn.outcome
        judged.first_sound = measures.first_sound(recording, turn.said, answer)
        judged.gaps = measures.gaps(recording, answer)
        if during is not None and measures.is_under_way(recording, answer, during.start):
            if self._scenario.goes_on:
                judged.stopped = measures.was_stopped(recording, answer, during.start, during.end)
            else:
                judged.silence = measures.silence(recording, during, answer)
        elif self._scenario.is_noisy:
            judged.stopped = measures.was_stopped(recording, answer, turn.said.end, math.inf)
        response = recording.answers[answer]
        outcome.texts = response.texts
        for piece in recording.pieces:
            if piece.response == answer:
                outcome.hears(piece.at, piece.seconds)
        outcome.count_pieces()
        outcome.take_usage(response.usage)
        if response.done is not None:
            outcome.ended = response.done

    async def _speaks(self, number: int, *, interrupts: bool) -> _Turn:
        clip = self._cast.interruption(number) if interrupts else self._cast.question(number)
        said = self._session.say(clip.samples, clip.text)
        if self._turns:
            self._outcomes.append(Outcome(said.end))
        outcome = self._outcomes[-1]
        # An outcome ends with its answer; one without an answer was over at once.
        outcome.began = outcome.ended = said.end
        turn = _Turn(said, outcome, interrupts)
        self._turns.append(turn)
        if self._scenario.is_crowded:
            self._session.say(self._cast.second_voice(number)[: len(clip.samples)], None)
        await self._session.pause(said.end)
        if not self._scenario.hands_free:
            await self._session.all_sent()
            await self._session.send("input_audio_buffer.commit")
            await self._session.send("response.create")
        return turn

    async def _disturb(self, turn: _Turn, number: int) -> None:
        assert turn.answer is not None
        spans = measures.audible_spans(self._recording, turn.answer)
        first = next(start for start, end in spans if end > turn.said.end)
        await self._session.pause(max(first, turn.said.end) + self._chance.uniform(*_INTO_ANSWER_S))
        if self._scenario.during_answer == "question":
            interruption = await self._speaks(number, interrupts=True)
            turn.during = interruption.said
            await self._is_answered(interruption)
            return
        sound = (
            self._cast.backchannel()
            if self._scenario.during_answer == "backchannel"
            else self._cast.second_voice(number)
        )
        turn.during = self._session.say(sound, None)
        await self._session.pause(turn.during.end + measures.NOTICED_LATE_S)

    async def _is_answered(self, turn: _Turn) -> bool:
        """Waits until an answer is heard; False if there is none, which fails the turn alone."""
        recording, said = self._recording, turn.said

        def has_answer() -> bool:
            return measures.answer_to(recording, said) is not None

        def is_over() -> bool:
            return has_answer() or any(
                answer.created >= said.end and answer.status in ("completed", "incomplete", "failed")
                for answer in recording.answers.values()
            )

        if not await self._session.until(is_over, said.end + _NOTICED_S - time.perf_counter()):
            await self._session.until(lambda: is_over() or not recording.is_answering, self._timeout_s)
        turn.answer = measures.answer_to(recording, said)
        if turn.answer is None:
            turn.outcome.error = self._missing(said)
        return turn.answer is not None

    def _missing(self, said: Said) -> CallFailed:
        later = [answer for answer in self._recording.answers.values() if answer.created >= said.start]
        for answer in later:
            if answer.status == "failed":
                return CallFailed("response failed", json.dumps(answer.details))
        if later:
            return CallFailed("no sound", "nothing that can be heard came in the answer to a turn")
        last = f"; its last error: {self._recording.errors[-1]}" if self._recording.errors else ""
        return CallFailed("no answer", f"the server began none within {_NOTICED_S:g} s of a turn's end{last}")
