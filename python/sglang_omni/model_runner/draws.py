"""Draws of the next tokens of a batch's rows, each by its own settings and its own random number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.filters import Filters, has_filter, invert, top_k_of, top_p_of
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.request_sampling import RequestSampling

# Filters look at this many of the likeliest tokens first, and at all tokens only if those do not suffice.
CANDIDATES = 512


class _Rows(NamedTuple):
    """Some rows of a batch.

    Attributes:
        places: (n,); None for all rows.
        temperature: (n, 1).
    """

    places: Tensor | None
    temperature: Tensor

    def of(self, whole: Tensor) -> Tensor:
        """Their rows of (S, vocab_size)."""
        return whole if self.places is None else whole.index_select(0, self.places)

    def into(self, whole: Tensor, part: Tensor) -> Tensor:
        """``whole`` (S,) with ``part`` (n,) in their places."""
        return part if self.places is None else whole.index_copy(0, self.places, part)


class Drawn(NamedTuple):
    """
    Attributes:
        tokens: (S,) int64, drawn among the likeliest tokens.
        short: (S,) bool, True for rows whose draw depends on more than these; None if there can be none.
        again: Draws among all tokens; set if ``short`` is.
    """

    tokens: Tensor
    short: Tensor | None = None
    again: Callable[[], Tensor] | None = None

    def all_tokens(self) -> Tensor:
        """The tokens (S,) as they are drawn among all."""
        return self.tokens if self.again is None else self.again()


class Draws:
    """The settings of a batch's rows, as tensors on the device of their logits.

    Attributes:
        params: What they were made from.
        order: The rows that are drawn at random, in the order of their random numbers. All others take their
            likeliest token.
    """

    def __init__(self, params: Sequence[RequestSampling], vocab_size: int, device: torch.device) -> None:
        self.params = list(params)
        drawn = [index for index, each in enumerate(params) if each.temperature > 0.0]
        filtered = [index for index in drawn if has_filter(params[index])]
        self.order = [index for index in drawn if not has_filter(params[index])] + filtered
        self._num_plain = len(drawn) - len(filtered)
        self._plain: _Rows | None = None
        self._filtered: _Rows | None = None
        if not drawn:
            return
        # Doubles hold every index, and round to float32 as the parameters themselves do.
        numbers = [
            (index, p.temperature, top_k_of(p, vocab_size), top_p_of(p), p.min_p, p.filters_first)
            for index in self.order
            for p in (params[index],)
        ]
        packed = to_device(torch.tensor(numbers, dtype=torch.float64), device)
        plain, rest = packed.tensor_split([self._num_plain])
        if self._num_plain:
            self._plain = self._rows(plain)
        if not filtered:
            return
        self._filtered = self._rows(rest)
        rows = [params[index] for index in filtered]
        top_k = [top_k_of(each, vocab_size) for each in rows]
        _, _, k, p, min_p, first = rest.float().split(1, dim=1)
        self._filters = Filters(
            self._filtered.temperature,
            top_k=k if min(top_k) < math.inf else None,
            top_p=p if any(each.top_p < 1.0 for each in rows) else None,
            min_p=min_p if any(each.min_p > 0.0 for each in rows) else None,
            first=first > 0 if any(each.filters_first for each in rows) else None,
        )
        # Rows whose top_k is beyond the candidates: how much they leave is known of all tokens only.
        is_wide = any(CANDIDATES < each < math.inf for each in top_k)
        self._wide = ((k > CANDIDATES) & (k < math.inf)).squeeze(1) if is_wide else None

    def _rows(self, columns: Tensor) -> _Rows:
        index = None if len(columns) == len(self.params) else columns[:, 0].long()
        return _Rows(index, columns[:, 1:2].float())

    def draw(self, logits: Tensor, uniforms: Tensor) -> Drawn:
        """One draw for each row, by inverting the cumulative distribution over tokens.

        Args:
            logits: (S, vocab_size) float32, read in this call only.
            uniforms: (n, 1) float64 in [0, 1), one for each row of ``order``.
        """
        if not self.order:
            return Drawn(logits.argmax(dim=-1))
        if len(self.order) == len(self.params):
            tokens = logits.new_empty(len(logits), dtype=torch.long)
        else:
            tokens = logits.argmax(dim=-1)
        plain, filtered = uniforms.tensor_split([self._num_plain])
        if self._plain is not None:
            scaled = _shifted(self._plain.of(logits)) / self._plain.temperature
            chosen = invert(scaled.softmax(dim=-1), plain)
            tokens = self._plain.into(tokens, chosen.squeeze(1))
        if self._filtered is None:
            return Drawn(tokens)
        rows, filters, vocab_size = self._filtered, self._filters, logits.shape[-1]
        shifted = _shifted(rows.of(logits))
        seen = filters.seen(shifted, shifted / filters.temperature)
        log_total = seen.logsumexp(dim=-1, keepdim=True)

        def choose(width: int) -> tuple[Tensor, Tensor, Tensor]:
            values, ids = _likeliest(seen, width)
            weights = filters.weights(values, log_total)
            chosen = ids.gather(1, invert(weights, filtered)).squeeze(1)
            return rows.into(tokens, chosen), values, weights

        # One more than the candidates, to see that it and what follows is left out.
        width = min(CANDIDATES + 1, vocab_size)
        first, values, weights = choose(width)
        if width == vocab_size:
            return Drawn(first)
        # Of tokens as likely as the last one, any may be among the candidates.
        short = weights.masked_fill(values != values[:, -1:], 0.0).amax(dim=-1) > 0
        if self._wide is not None:
            short = short | self._wide
        return Drawn(first, rows.into(short.new_zeros(len(logits)), short), lambda: choose(vocab_size)[0])


def _shifted(logits: Tensor) -> Tensor:
    # Less their maximum, which keeps a very small temperature from overflowing.
    return logits - logits.amax(dim=-1, keepdim=True)


def _likeliest(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` largest logits of each row and their ids, (S, width) each.

    Equal ones are in the order of their ids, which decides what a draw chooses, whatever the ``width``.
    """
    if width == logits.shape[-1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    values, ids = logits.topk(width, dim=-1, sorted=False)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)
