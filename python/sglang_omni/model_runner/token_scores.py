"""Log-probabilities of tokens, of an answer and of its prompt, as the model itself gives them.

They are natural logarithms of softmax in float32, before temperature, penalties, biases and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.host_copies import to_device

# Rows of a prompt whose logits are in memory at a time.
_ROWS_AT_A_TIME = 64


class TokenScore(NamedTuple):
    """
    Attributes:
        logprob: None for a prompt's first token, which nothing predicts.
        top: The likeliest tokens at its place with theirs, the likeliest first.
    """

    token: int
    logprob: float | None
    top: list[tuple[int, float]]


class ScoreRequest(NamedTuple):
    """A request for the scores of the token that follows a row of logits.

    Attributes:
        num_top: Alternatives to report.
        scores: Where the token's score is added.
    """

    row: int
    num_top: int
    scores: list[TokenScore]


class StepScores:
    """The scores of one step's tokens, on the device until they are delivered.

    Args:
        logits: (S, vocab_size) float32, before anything changes them.
    """

    def __init__(self, logits: Tensor, wanted: Sequence[ScoreRequest]) -> None:
        self._wanted = wanted
        self._rows = to_device(torch.tensor([each.row for each in wanted]), logits.device)
        self._logprobs = logits.index_select(0, self._rows).log_softmax(dim=-1)
        self._packed: Tensor | None = None

    def choose(self, tokens: Tensor) -> None:
        """Takes the chosen tokens (S,) int64 of the step."""
        most = max(each.num_top for each in self._wanted)
        self._packed = _packed(self._logprobs, tokens.index_select(0, self._rows), most)

    def deliver(self) -> None:
        """Called after the tokens have been read, so that the host waits only once."""
        assert self._packed is not None
        for each, numbers in zip(self._wanted, self._packed.tolist(), strict=True):
            each.scores.append(_score(numbers, each.num_top))


class PromptScores:
    """The scores of a prompt's tokens, filled in as its chunks are computed.

    Attributes:
        num_top: Alternatives to report.
        scores: By position; the first has no ``logprob``.
    """

    def __init__(self, prompt: Sequence[int], num_top: int) -> None:
        self.num_top = num_top
        self.scores: list[TokenScore] = [TokenScore(prompt[0], None, [])] if prompt else []
        self._prompt = prompt

    @property
    def complete(self) -> bool:
        return len(self.scores) == len(self._prompt)

    def add(self, start: int, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Takes a chunk.

        Args:
            start: The position of its first token.
            hidden: (n, hidden_size) of its tokens, after the last norm; each predicts the token after it.
            logits: The model's head, (n, hidden_size) -> (n, vocab_size) float32.
        """
        # After a retraction, a chunk may begin before the last position that is known.
        hidden, first = hidden[len(self.scores) - 1 - start :], len(self.scores)
        for piece in hidden[: len(self._prompt) - first].split(_ROWS_AT_A_TIME):
            tokens = self._prompt[len(self.scores) : len(self.scores) + len(piece)]
            index = to_device(torch.tensor(tokens, dtype=torch.long), hidden.device)
            packed = _packed(logits(piece).log_softmax(dim=-1), index, self.num_top)
            self.scores += [_score(numbers, self.num_top) for numbers in packed.tolist()]

    def fill(self, logprobs: Sequence[float], tops: Sequence[list[tuple[int, float]]]) -> None:
        """Takes the scores of all tokens but the first, computed elsewhere."""
        after = zip(self._prompt[1:], logprobs, tops, strict=True)
        self.scores[1:] = [TokenScore(*each) for each in after]


class PromptRows(NamedTuple):
    """A chunk of a prompt in a batch, whose tokens' scores are wanted.

    Attributes:
        start: The position of its first token.
        first_row, num_rows: Its rows of the batch.
    """

    scores: PromptScores
    start: int
    first_row: int
    num_rows: int


def _packed(logprobs: Tensor, tokens: Tensor, num_top: int) -> Tensor:
    """(N, 2 + 2 * k): ``tokens`` (N,), their ``logprobs`` (N, vocab_size), the k likeliest, and theirs.

    Doubles hold every token and every float32, and one copy brings all to the host.
    """
    own = tokens.unsqueeze(1)
    values, ids = logprobs.topk(min(num_top, logprobs.shape[-1]), dim=-1)
    return torch.cat([part.double() for part in (own, logprobs.gather(1, own), ids, values)], dim=1)


def _score(numbers: Sequence[float], num_top: int) -> TokenScore:
    """A row of ``_packed``, and how many of its alternatives are wanted."""
    token, own, *top = numbers
    count = len(top) // 2
    pairs = zip(top[: min(num_top, count)], top[count:], strict=False)
    return TokenScore(int(token), own, [(int(other), value) for other, value in pairs])
