"""The filters of draws, ``top_k``, ``top_p`` and ``min_p``, each row of a batch with its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling


def has_filter(sampling: RequestSampling) -> bool:
    """True if a draw is not among all tokens."""
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0


class Filters(NamedTuple):
    """The parameters of S rows, (S, 1) each.

    Attributes:
        top_k: A number above that of the tokens for no limit.
        first: True for rows of ``RequestSampling.filters_first``; None if there is none.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
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
        width = values.shape[-1]
        place = torch.arange(width, device=values.device)
        inside_k = place < self.top_k
        weights = torch.where(inside_k, (values - log_total).exp(), 0.0)
        cumulative = weights.cumsum(dim=-1)
        # As in transformers, top_p is a share of the probability that top_k left.
        reached = torch.where(self.top_k <= width, weights.sum(-1, keepdim=True), 1.0)
        inside_p = cumulative - weights < self.top_p * reached
        if self.first is not None:
            inside_p = torch.where(self.first, (cumulative <= self.top_p) | (place == 0), inside_p)
        keep = inside_k & inside_p & (weights >= self.min_p * weights[:, :1])
        if self.first is not None:
            weights = torch.where(self.first, (values / self.temperature).exp(), weights)
        return torch.where(keep, weights, 0.0)


def invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The indices (S, 1) at which the cumulative weights (S, n) pass the share ``uniforms`` of their sum.

    Args:
        uniforms: (S, 1) float64 in [0, 1).
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    # right=True: a token of weight 0 is never chosen, not even by a draw of exactly 0.
    chosen = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return chosen.clamp_(max=weights.shape[-1] - 1)
