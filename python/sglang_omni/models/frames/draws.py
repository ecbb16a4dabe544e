"""Draws of a frame's residual codes on the device: the sampler's choice, without a word to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_omni.model_runner.code_predictor import Choose
from sglang_omni.model_runner.filters import Filters, has_filter, invert, top_p_of
from sglang_omni.model_runner.request_sampling import RequestSampling

# Columns before a sequence's random numbers.
_SETTINGS = 6


def draw_row(sampling: RequestSampling, uniforms: Sequence[float]) -> list[float]:
    """A row of ``draw_codes``.

    Args:
        uniforms: (G - 1,), random numbers in [0, 1), one for each residual code.
    """
    top_k = float(sampling.top_k) if sampling.top_k > 0 else float("inf")
    # A temperature of 0 divides nothing.
    temperature = sampling.temperature or 1.0
    drawn, filtered = float(sampling.temperature > 0.0), float(has_filter(sampling))
    return [temperature, top_p_of(sampling), sampling.min_p, top_k, drawn, filtered, *uniforms]


def draw_codes(rows: Tensor, *, filters_first: bool = False) -> Choose:
    """Draws as ``model_runner.sampling.Sampler`` does with the same random numbers; penalties have no effect.

    Args:
        rows: (B, 6 + G - 1) float64, of each sequence by ``draw_row``, on the device of the logits.
        filters_first: As of ``RequestSampling``, the same for all rows.
    """
    temperature, top_p, min_p = rows[:, :3].float().unsqueeze(-1).unbind(1)
    top_k, is_drawn, is_filtered = rows[:, 3:4], rows[:, 4] > 0, rows[:, 5:6] > 0
    first = torch.ones_like(is_filtered) if filters_first else None
    filters = Filters(temperature, top_k, top_p, min_p, first)

    def choose(logits: Tensor, group: int) -> Tensor:
        logits = logits.float()
        shifted = logits - logits.amax(dim=-1, keepdim=True)
        scaled = shifted / temperature
        uniform = rows[:, _SETTINGS + group - 1 : _SETTINGS + group]
        seen = filters.seen(shifted, scaled)
        values, ids = seen.sort(dim=-1, descending=True, stable=True)
        weights = filters.weights(values, seen.logsumexp(dim=-1, keepdim=True))
        filtered = ids.gather(1, invert(weights, uniform))
        plain = invert(scaled.softmax(dim=-1), uniform)
        chosen = torch.where(is_filtered, filtered, plain).squeeze(1)
        return torch.where(is_drawn, chosen, logits.argmax(dim=-1))

    return choose


def draw_plain(logits: Tensor, uniform: float) -> int:
    """The code that a random number in [0, 1) draws by logits (codes,), without any filter."""
    weights = logits.float().softmax(dim=-1).unsqueeze(0)
    draw = torch.tensor([[uniform]], dtype=torch.float64)
    return int(invert(weights, draw.to(weights.device)))
