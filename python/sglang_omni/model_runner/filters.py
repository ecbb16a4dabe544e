"""The filters of draws, ``top_k``, ``top_p`` and ``min_p``, each row of a batch with its own."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling


def has_filter(sampling: RequestSampling) -> bool:
    """True if a draw is not among all tokens."""
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def top_k_of(sampling: RequestSampling, vocab_size: int) -> float:
    """Infinite for no limit."""
    return float(sampling.top_k) if 0 < sampling.top_k < vocab_size else math.inf


def top_p_of(sampling: RequestSampling) -> float:
    """Infinite for no limit: probabilities that are summed up may reach 1 before their last."""
    return sampling.top_p if sampling.top_p < 1.0 else math.inf


class Filters(NamedTuple):
    """The parameters of S rows, (S, 1) each. A row's result depends on its own alone.

    Attributes:
        top_k: As ``top_k_of``; None if no row has a limit.
        top_p: As ``top_p_of``; None likewise.
        min_p: None if it is 0 in all rows.
        first: True for rows of ``RequestSampling.filters_first``; None if there is none.
    """

    temperature: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    first: Tensor | None = None

    def seen(self, shifted: Tensor, scaled: Tensor) -> Tensor:
        """The logits (S, vocab_size) that the filters look at.

        Args:
            shifted: Logits less the largest of their row.
            scaled: The same, divided by the temperature.
        """
        return scaled if self.first is None else torch.where(self.first, shifted, scaled)

    def weights(self, values: Tensor, log_total: Tensor) -> Tensor:
        """The shares (S, width) at which the likeliest tokens are drawn, 0 for those that are left out.

        Args:
            values: (S, width), the largest of the ``seen`` logits of each row, in descending order.
            log_total: (S, 1), the logarithm of the sum of all exponentials of these.
        """
        weights = (values - log_total).exp()
        place = torch.arange(values.shape[-1], device=values.device)
        left_out: list[Tensor] = []
        if self.top_k is not None:
            outside = place >= self.top_k
            weights.masked_fill_(outside, 0.0)
            if self.first is not None:
                left_out.append(outside)
        if self.top_p is not None:
            left_out.append(self._outside_p(self.top_p, weights, place))
        if self.min_p is not None:
            left_out.append(weights < self.min_p * weights[:, :1])
        if self.first is not None:
            weights = torch.where(self.first, (values / self.temperature).exp(), weights)
        for outside in left_out:
            weights.masked_fill_(outside, 0.0)
        return weights

    def _outside_p(self, top_p: Tensor, weights: Tensor, place: Tensor) -> Tensor:
        cumulative = weights.cumsum(dim=-1)
        limit = top_p
        if self.top_k is not None:
            # As in transformers, top_p is a share of the probability that top_k left.
            limit = top_p * cumulative[:, -1:].masked_fill(self.top_k == math.inf, 1.0)
        outside = cumulative - weights >= limit
        if self.first is None:
            return outside
        return torch.where(self.first, (cumulative > top_p) & (place > 0), outside)


def invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The indices (S, 1) at which the cumulative weights (S, n) pass the share ``uniforms`` of their sum.

    Args:
        uniforms: (S, 1) float64 in [0, 1).
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    # right=True: a token of weight 0 is never chosen, not even by a draw of exactly 0.
    chosen = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return chosen.clamp_(max=weights.shape[-1] - 1)
