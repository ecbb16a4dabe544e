"""Draws of a frame's residual codes on the device: the sampler's choice, without a word to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_omni.model_runner.code_predictor import Choose
from sglang_omni.model_runner.request_sampling import RequestSampling

# Columns before a sequence's random numbers.
_SETTINGS = 6


def draw_row(sampling: RequestSampling, uniforms: Sequence[float]) -> list[float]:
    """A row of ``draw_codes``.

    Args:
        uniforms: (G - 1,), random numbers in [0, 1), one for each residual code.
    """
    filtered = sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
    top_k = float(sampling.top_k) if sampling.top_k > 0 else float("inf")
    # A temperature of 0 divides nothing.
    temperature = sampling.temperature or 1.0
    drawn = float(sampling.temperature > 0.0)
    return [temperature, sampling.top_p, sampling.min_p, top_k, drawn, float(filtered), *uniforms]


def draw_codes(rows: Tensor) -> Choose:
    """Draws as ``model_runner.sampling.sample`` does with the same random numbers; penalties have no effect.

    Args:
        rows: (B, 6 + G - 1) float64, of each sequence by ``draw_row``, on the device of the logits.
    """
    temperature, top_p, min_p = rows[:, :3].float().unsqueeze(-1).unbind(1)
    top_k, is_drawn, is_filtered = rows[:, 3:4], rows[:, 4] > 0, rows[:, 5:6] > 0

    def choose(logits: Tensor, group: int) -> Tensor:
        logits = logits.float()
        scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
        uniform = rows[:, _SETTINGS + group - 1 : _SETTINGS + group]
        filtered = _draw_filtered(scaled, top_k, top_p, min_p, uniform)
        plain = _invert(scaled.softmax(dim=-1), uniform)
        chosen = torch.where(is_filtered, filtered, plain).squeeze(1)
        return torch.where(is_drawn, chosen, logits.argmax(dim=-1))

    return choose


def draw_plain(logits: Tensor, uniform: float) -> int:
    """The code that a random number in [0, 1) draws by logits (codes,), without any filter."""
    weights = logits.float().softmax(dim=-1).unsqueeze(0)
    draw = torch.tensor([[uniform]], dtype=torch.float64)
    return int(_invert(weights, draw.to(weights.device)))


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
