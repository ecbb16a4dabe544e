"""Penalties for tokens that a sequence has already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.request_sampling import RequestSampling


class TokenHistory:
    """The tokens of a sequence, for its penalties. One token is added in each step.

    Its tensors are on the device of the logits, and follow its tokens when these are next penalised.

    Attributes:
        new_prompt, new_output: Tokens that the tensors do not have yet.
        seen: (vocab_size,) bool, the tokens of prompt and output.
        counts: (vocab_size,) float32, how often each token is in the output.
    """

    def __init__(self, vocab_size: int, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self.new_prompt = list(prompt)
        self.new_output = list(output)
        self.seen: Tensor | None = None
        self.counts: Tensor | None = None

    def add(self, token: int) -> None:
        self.new_output.append(token)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """``seen`` and ``counts``, without the new tokens."""
        if self.seen is None or self.counts is None:
            self.seen = torch.zeros(self._vocab_size, dtype=torch.bool, device=device)
            self.counts = torch.zeros(self._vocab_size, dtype=torch.float32, device=device)
        return self.seen, self.counts


class NewTokens(NamedTuple):
    """The tokens that came to some histories since they were last penalised.

    Attributes:
        places: Of each token in the histories' tensors, joined and flat.
        added: What each adds to the counts: 1 for one of the output, 0 for one of the prompt.
    """

    places: list[int]
    added: list[float]


class Penalties:
    """The penalties of some rows of a batch. The tensors of their histories are views of its own.

    Args:
        rows: The index of each row in the batch, its parameters and its history.
        num_rows: Of the batch.
    """

    def __init__(
        self,
        rows: Sequence[tuple[int, RequestSampling, TokenHistory]],
        num_rows: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._histories = [history for _, _, history in rows]
        self._vocab_size = vocab_size
        tensors = [history.on(device) for history in self._histories]
        self._seen = torch.stack([seen for seen, _ in tensors])
        self._counts = torch.stack([counts for _, counts in tensors])
        for position, history in enumerate(self._histories):
            history.seen, history.counts = self._seen[position], self._counts[position]
        numbers = [
            [index, params.repetition_penalty, params.presence_penalty, params.frequency_penalty]
            for index, params, _ in rows
        ]
        packed = to_device(torch.tensor(numbers, dtype=torch.float64), device)
        self._index = None if len(rows) == num_rows else packed[:, 0].long()
        self._repetition, self._presence, self._frequency = packed[:, 1:].float().split(1, dim=1)
        self._subtracts = any(params.presence_penalty or params.frequency_penalty for _, params, _ in rows)

    def take_new(self) -> NewTokens:
        """The new tokens of the histories, which are then no longer new."""
        places: list[int] = []
        added: list[float] = []
        for position, history in enumerate(self._histories):
            first = position * self._vocab_size
            places += [first + token for token in history.new_prompt]
            places += [first + token for token in history.new_output]
            added += [0.0] * len(history.new_prompt) + [1.0] * len(history.new_output)
            history.new_prompt, history.new_output = [], []
        return NewTokens(places, added)

    def apply(self, logits: Tensor, places: Tensor, added: Tensor) -> None:
        """Penalises the rows of ``logits`` (S, vocab_size) float32 in place.

        Args:
            places, added: (n,) float64 on the device, of ``take_new``.
        """
        where = places.long()
        self._seen.view(-1).index_fill_(0, where, True)
        self._counts.view(-1).scatter_add_(0, where, added.float())
        rows = logits if self._index is None else logits.index_select(0, self._index)
        scaled = torch.where(rows > 0, rows / self._repetition, rows * self._repetition)
        rows = torch.where(self._seen, scaled, rows)
        if self._subtracts:
            rows = rows - self._presence * (self._counts > 0) - self._frequency * self._counts
        if self._index is None:
            logits.copy_(rows)
        else:
            logits.index_copy_(0, self._index, rows)
