"""What a request may ask of its tokens beyond sampling: biases, a grammar, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.token_scores import TokenScore


class TokenMask(Protocol):
    """Says which tokens may come next, as ``GrammarState`` does."""

    def fill(self, masks: Tensor, row: int) -> None:
        """Writes a row of ``masks`` (N, ceil(vocab_size / 32)) int32: bit t is 1 if token t may come."""
        ...


@dataclass(slots=True)
class TokenDemands:
    """What one request asks.

    Attributes:
        logit_bias: (token, what is added to its logit).
        mask: None if every token may come.
        num_top: Alternatives reported with each output token; None to report nothing.
        scores: Of the output's tokens so far, if ``num_top`` is set.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    mask: TokenMask | None = None
    num_top: int | None = None
    scores: list[TokenScore] = field(default_factory=list)

    def without(self, tokens: Sequence[int]) -> Self:
        """The same, with the same scores, and none of these tokens."""
        return replace(self, logit_bias=(*self.logit_bias, *((token, float("-inf")) for token in tokens)))


def add_biases(logits: Tensor, demands: Sequence[tuple[int, TokenDemands]]) -> None:
    """Adds the biases of rows, each with its index, to ``logits`` (S, vocab_size) in place."""
    places = [(row, token, bias) for row, each in demands for token, bias in each.logit_bias]
    if not places:
        return
    # Doubles hold every index.
    packed = to_device(torch.tensor(places, dtype=torch.float64).t().contiguous(), logits.device)
    rows, tokens = packed[:2].long()
    logits.index_put_((rows, tokens), packed[2].to(logits.dtype), accumulate=True)


def apply_masks(logits: Tensor, demands: Sequence[tuple[int, TokenDemands]]) -> None:
    """Takes the tokens that may not come out of ``logits`` (S, vocab_size) in place, in the rows with masks.

    On a GPU the host writes the masks while the forward pass is still computed, and waits for nothing.
    """
    masked = [(row, each.mask) for row, each in demands if each.mask is not None]
    if not masked:
        return
    size = logits.shape[-1]
    masks = torch.zeros(len(masked), -(-size // 32), dtype=torch.int32)
    for position, (_, mask) in enumerate(masked):
        mask.fill(masks, position)
    rows = to_device(torch.tensor([row for row, _ in masked]), logits.device)
    words = to_device(masks, logits.device).unsqueeze(-1)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    forbidden = ((words >> bits) & 1 == 0).view(len(masked), -1)[:, :size]
    logits.index_copy_(0, rows, logits.index_select(0, rows).masked_fill_(forbidden, float("-inf")))
