"""The sampler: chooses the next token of every sequence from logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling

# Filters look at this many of the likeliest tokens first, and at all tokens only if those do not suffice.
CANDIDATES = 512


class TokenHistory:
    """The tokens of a sequence, for its penalties. One token is added in each step."""

    def __init__(self, vocab_size: int, prompt: Iterable[int], output: Iterable[int]) -> None:
        self.seen = torch.zeros(vocab_size, dtype=torch.bool)
        self.counts = torch.zeros(vocab_size, dtype=torch.float32)
        self.seen[torch.tensor(list(prompt), dtype=torch.long)] = True
        for token in output:
            self.add(token)

    def add(self, token: int) -> None:
        self.seen[token] = True
        self.counts[token] += 1


class SamplingRow(NamedTuple):
    """The sampler's input for one sequence.

    Attributes:
        uniform: The one random number in [0, 1) that the choice may use. The request's own generator draws
            it, so the choice does not depend on the batch.
        history: Set if there are penalties.
    """

    params: RequestSampling
    uniform: float
    history: TokenHistory | None = None


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """The next tokens (S,) int64, on the device of ``logits`` (S, vocab_size) float32, which are changed."""
    for index, row in enumerate(rows):
        if row.history is not None:
            _penalise(logits[index], row.params, row.history)
    tokens = logits.argmax(dim=-1)
    drawn = [index for index, row in enumerate(rows) if row.params.temperature > 0.0]
    if drawn:
        tokens[drawn] = _draw(logits[drawn], [rows[index] for index in drawn])
    return tokens


def _penalise(logits: Tensor, params: RequestSampling, history: TokenHistory) -> None:
    if params.repetition_penalty != 1.0:
        penalty = params.repetition_penalty
        scaled = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits.copy_(torch.where(history.seen, scaled, logits))
    if params.presence_penalty != 0.0:
        logits.sub_((history.counts > 0).float(), alpha=params.presence_penalty)
    if params.frequency_penalty != 0.0:
        logits.sub_(history.counts, alpha=params.frequency_penalty)


def _draw(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """One draw for each row, by inverting the cumulative distribution over tokens."""
    temperatures = torch.tensor([[row.params.temperature] for row in rows], dtype=torch.float32)
    # Subtracting the maximum first keeps a very small temperature from overflowing.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperatures
    filtered = [i for i, row in enumerate(rows) if _has_filter(row.params)]
    plain = [i for i, row in enumerate(rows) if not _has_filter(row.params)]
    tokens = torch.empty(len(rows), dtype=torch.long)
    if plain:
        probabilities = scaled[plain].softmax(dim=-1)
        tokens[plain] = _invert(probabilities, [rows[i].uniform for i in plain])
    if filtered:
        tokens[filtered] = _draw_filtered(scaled[filtered], [rows[i] for i in filtered])
    return tokens


def _has_filter(params: RequestSampling) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def _draw_filtered(scaled: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    vocab_size = scaled.shape[-1]
    top_k = torch.tensor(
        [[min(row.params.top_k, vocab_size) if row.params.top_k > 0 else vocab_size] for row in rows]
    )
    top_p = torch.tensor([[row.params.top_p] for row in rows], dtype=torch.float32)
    min_p = torch.tensor([[row.params.min_p] for row in rows], dtype=torch.float32)
    log_total = scaled.logsumexp(dim=-1, keepdim=True)

    width = min(CANDIDATES, vocab_size)
    while True:
        values, ids = scaled.topk(width, dim=-1)
        # As in transformers, top_p is a share of the probability that top_k left.
        inside_k = torch.arange(width) < top_k
        weights = torch.where(inside_k, (values - log_total).exp(), 0.0)
        reached = torch.where(top_k <= width, weights.sum(-1, keepdim=True), 1.0)
        before = weights.cumsum(dim=-1) - weights
        keep = inside_k & (before < top_p * reached) & (weights >= min_p * weights[:, :1])
        # If the last candidate is kept, tokens beyond the candidates may have to be kept too.
        if width == vocab_size or not bool((keep[:, -1:] & (top_k > width)).any()):
            break
        width = vocab_size
    chosen = _invert(torch.where(keep, weights, 0.0), [row.uniform for row in rows])
    return ids.gather(1, chosen.unsqueeze(1)).squeeze(1)


def _invert(weights: Tensor, uniforms: Sequence[float]) -> Tensor:
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    targets = torch.tensor(uniforms, dtype=torch.float64).unsqueeze(1) * cumulative[:, -1:]
    # right=True: a token of weight 0 is never chosen, not even by a draw of exactly 0.
    chosen = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    return chosen.clamp_(max=weights.shape[-1] - 1)
