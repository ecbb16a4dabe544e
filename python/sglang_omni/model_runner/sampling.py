"""The sampler: chooses the next token of every sequence from logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.demands import TokenDemands, add_biases, apply_masks
from sglang_omni.model_runner.draws import Drawn, Draws
from sglang_omni.model_runner.host_copies import HostCopy, to_device
from sglang_omni.model_runner.penalties import NewTokens, Penalties, TokenHistory
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.token_scores import ScoreRequest, StepScores

_NO_NUMBERS = torch.zeros(0, 1, dtype=torch.float64)


@dataclass(frozen=True)
class RepetitionRule:
    """Repetition-aware sampling, as Fish Audio S2-Pro's authors do it: it keeps speech from looping.

    A token that was drawn, and is among the last ones of the output, is drawn again, once.

    Attributes:
        window: So many tokens of the output are looked at.
        temperature, top_p: Of the second draw; the request's other parameters stay.
    """

    window: int
    temperature: float
    top_p: float

    def redraw(self, params: RequestSampling, uniform: float, output: Sequence[int]) -> Redraw:
        again = replace(params, temperature=self.temperature, top_p=self.top_p)
        return Redraw(again, uniform, tuple(output[-self.window :]))


class Redraw(NamedTuple):
    """The second draw of one step; it counts if the first gave one of the ``recent`` tokens."""

    params: RequestSampling
    uniform: float
    recent: tuple[int, ...]


class SamplingRow(NamedTuple):
    """The sampler's input for one sequence.

    Attributes:
        uniform: The one random number in [0, 1) that the choice may use. The request's own generator draws
            it, so the choice does not depend on the batch.
        history: Set if there are penalties.
        demands: Set if the request asks for more than sampling.
        redraw: Set if the token may be drawn twice.
    """

    params: RequestSampling
    uniform: float
    history: TokenHistory | None = None
    demands: TokenDemands | None = None
    redraw: Redraw | None = None


class Choice:
    """The next tokens of one step, on the device of its logits until the host reads them.

    Args:
        drawn: How they were drawn.
        scores: Of the tokens, if any are wanted.

    Attributes:
        tokens: (S,) int64. ``read`` corrects some in place if the likeliest did not suffice for their draws.
        corrected: True if it did.
    """

    def __init__(self, drawn: Drawn, scores: StepScores | None = None) -> None:
        self._again = drawn.again
        self._scores = scores
        self.corrected = False
        # One copy brings tokens and marks to the host.
        tokens, short = drawn.tokens, drawn.short
        self._packed = tokens.unsqueeze(0) if short is None else torch.stack([tokens, short.long()])
        self._fetched: HostCopy | None = None
        self.tokens = self._packed[0]
        if scores is not None:
            scores.choose(self.tokens)

    def fetch(self) -> None:
        """Queues the copy to the host, so that ``read`` does not wait for what is queued after it."""
        self._fetched = HostCopy(self._packed)

    def read(self) -> Tensor:
        """The tokens (S,) int64 on the host, and their scores delivered. Called once.

        Here the host waits for the device.
        """
        packed = self._packed.cpu() if self._fetched is None else self._fetched.read()
        # It holds the step's logits.
        again, self._again = self._again, None
        if again is not None and 1 in packed[1].tolist():
            self.tokens.copy_(torch.where(self._packed[1] > 0, again(), self.tokens))
            self.corrected = True
            if self._scores is not None:
                self._scores.choose(self.tokens)
            packed = self._packed.cpu()
        if self._scores is not None:
            self._scores.deliver()
        return packed[0]


class Sampler:
    """Chooses the next token of every sequence from logits.

    The same numbers choose the same tokens on every device, up to the rounding of its arithmetic, and a row's
    choice does not depend on the others. What the rows ask stays on the device until the rows change; one
    copy takes the numbers of a step there.

    Args:
        suppress_token_ids: Tokens that are never chosen.
    """

    def __init__(self, suppress_token_ids: Sequence[int] = ()) -> None:
        self._suppressed = torch.tensor(suppress_token_ids, dtype=torch.long)
        self._draws: Draws | None = None
        self._redraws: Draws | None = None
        self._histories: list[TokenHistory | None] = []
        self._penalties: Penalties | None = None

    def choose(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Choice:
        """Queues the choice of a step. The host waits for nothing.

        Args:
            logits: (S, vocab_size) float32, the model's; they are changed.
            rows: One for each row of ``logits``.
        """
        demands = [(index, row.demands) for index, row in enumerate(rows) if row.demands is not None]
        scores = _scores(logits, demands) if demands else None
        if len(self._suppressed):
            self._suppressed = self._suppressed.to(logits.device)
            logits.index_fill_(1, self._suppressed, float("-inf"))
        if demands:
            add_biases(logits, demands)
            apply_masks(logits, demands)
        draws, penalties = self._settings(logits, rows)
        if not draws.order and penalties is None:
            return Choice(draws.draw(logits, _NO_NUMBERS), scores)
        numbers = [rows[index].uniform for index in draws.order]
        new = NewTokens([], []) if penalties is None else penalties.take_new()
        packed = _numbers([*numbers, *new.places, *new.added], logits)
        uniforms, places, added = packed.split([len(numbers), len(new.places), len(new.added)])
        if penalties is not None:
            penalties.apply(logits, places, added)
        drawn = draws.draw(logits, uniforms.unsqueeze(1))
        redraws = [(index, row.redraw) for index, row in enumerate(rows) if row.redraw and row.redraw.recent]
        if redraws:
            drawn = self._drawn_again(drawn, logits, redraws)
        return Choice(drawn, scores)

    def _settings(self, logits: Tensor, rows: Sequence[SamplingRow]) -> tuple[Draws, Penalties | None]:
        histories = [row.history for row in rows]
        draws = _draws_of([row.params for row in rows], logits, self._draws)
        # Penalties are settings too.
        if draws is not self._draws or histories != self._histories:
            penalised = [
                (index, row.params, row.history) for index, row in enumerate(rows) if row.history is not None
            ]
            self._penalties = (
                Penalties(penalised, len(rows), logits.shape[-1], logits.device) if penalised else None
            )
            self._draws, self._histories = draws, histories
        return draws, self._penalties

    def _drawn_again(self, drawn: Drawn, logits: Tensor, redraws: Sequence[tuple[int, Redraw]]) -> Drawn:
        """``drawn``, with a second draw in the place of those that repeat a recent token."""
        self._redraws = again = _draws_of([redraw.params for _, redraw in redraws], logits, self._redraws)
        uniforms = _numbers([redraws[position][1].uniform for position in again.order], logits)
        longest = max(len(redraw.recent) for _, redraw in redraws)
        # -1 is no token.
        packed = torch.tensor(
            [[index, *redraw.recent, *[-1] * (longest - len(redraw.recent))] for index, redraw in redraws]
        )
        index, recent = to_device(packed, logits.device).tensor_split([1], dim=1)
        index = index.squeeze(1)

        second = again.draw(logits.index_select(0, index), uniforms.unsqueeze(1))

        def joined(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            own = first.index_select(0, index)
            repeats = (recent == own.unsqueeze(1)).any(dim=1)
            return first.index_copy(0, index, torch.where(repeats, second, own)), repeats

        tokens, repeats = joined(drawn.tokens, second.tokens)
        if drawn.again is None and second.again is None:
            return Drawn(tokens)
        short = torch.zeros_like(tokens, dtype=torch.bool) if drawn.short is None else drawn.short
        if second.short is not None:
            either = short.index_select(0, index) | (second.short & repeats)
            short = short.index_copy(0, index, either)
        return Drawn(tokens, short, lambda: joined(drawn.all_tokens(), second.all_tokens())[0])


def _numbers(numbers: Sequence[float], logits: Tensor) -> Tensor:
    """On the device of ``logits``. Doubles hold every index."""
    return to_device(torch.tensor(numbers, dtype=torch.float64), logits.device)


def _draws_of(params: Sequence[RequestSampling], logits: Tensor, last: Draws | None) -> Draws:
    """The ``last`` step's if these are its rows."""
    if last is not None and last.params == params:
        return last
    return Draws(params, logits.shape[-1], logits.device)


def _scores(logits: Tensor, demands: Sequence[tuple[int, TokenDemands]]) -> StepScores | None:
    wanted = [
        ScoreRequest(index, each.num_top, each.scores) for index, each in demands if each.num_top is not None
    ]
    return StepScores(logits, wanted) if wanted else None
