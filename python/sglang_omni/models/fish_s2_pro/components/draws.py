"""Draws of a frame's residual codes on the device: the sampler's choice, without a word to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_omni.model_runner.code_predictor import Choose
from sglang_omni.model_runner.request_sampling import RequestSampling


def draw_codes(
    samplings: Sequence[RequestSampling], uniforms: Sequence[Sequence[float]], device: torch.device
) -> Choose:
    """Draws as ``model_runner.sampling.sample`` does with the same random numbers; penalties have no effect.

    Args:
        samplings: Of each of the B sequences.
        uniforms: (B, G - 1), random numbers in [0, 1), one for each residual code.
        device: Of the logits.
    """
    settings = [
        [max(s.temperature, 1e-30), s.top_p, s.min_p, s.top_k if s.top_k > 0 else 1e9] for s in samplings
    ]
    kinds = [[s.temperature > 0.0, s.top_k > 0 or s.top_p < 1.0 or s.min_p > 0.0] for s in samplings]
    # float64 holds the uniforms and every other number here exactly.
    rows = [[*setting, *kind, *draws] for setting, kind, draws in zip(settings, kinds, uniforms, strict=True)]
    numbers = torch.tensor(rows, dtype=torch.float64).to(device, non_blocking=True)
    temperature, top_p, min_p = numbers[:, :3].float().unsqueeze(-1).unbind(1)
    top_k = numbers[:, 3:4]
    is_drawn, is_filtered = numbers[:, 4] > 0, numbers[:, 5:6] > 0
    some_filtered, some_plain = any(kind[1] for kind in kinds), not all(kind[1] for kind in kinds)

    def choose(logits: Tensor, group: int) -> Tensor:
        logits = logits.float()
        likeliest, highest = logits.argmax(dim=-1), logits.amax(dim=-1, keepdim=True)
        scaled = (logits - highest) / temperature
        uniform = numbers[:, 5 + group : 6 + group]
        chosen = likeliest.unsqueeze(1)
        if some_plain:
            chosen = _invert(scaled.softmax(dim=-1), uniform)
        if some_filtered:
            filtered = _draw_filtered(scaled, top_k, top_p, min_p, uniform)
            chosen = torch.where(is_filtered, filtered, chosen) if some_plain else filtered
        return torch.where(is_drawn, chosen.squeeze(1), likeliest)

    return choose


def _draw_filtered(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """(B, 1), of the codes that the filters keep. As in transformers, top_p is of what top_k left."""
    values, ids = scaled.sort(dim=-1, descending=True, stable=True)
    inside = torch.arange(values.shape[-1], device=scaled.device) < top_k
    weights = torch.where(inside, (values - scaled.logsumexp(dim=-1, keepdim=True)).exp(), 0.0)
    before = weights.cumsum(dim=-1) - weights
    keep = inside & (before < top_p * weights.sum(-1, keepdim=True)) & (weights >= min_p * weights[:, :1])
    return ids.gather(1, _invert(torch.where(keep, weights, 0.0), uniform))


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """(B, 1), where the cumulative weights exceed the share ``uniform`` of their sum."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    # right=True: a code of weight 0 is never chosen, not even by a draw of exactly 0.
    chosen = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return chosen.clamp_(max=weights.shape[-1] - 1)
