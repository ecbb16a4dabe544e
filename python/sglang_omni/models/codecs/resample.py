"""Resampling of waves by band-limited interpolation, for models whose reference resamples so.

Julius O. Smith, "Digital audio resampling", https://ccrma.stanford.edu/~jos/resample/; the reference is
``torchaudio.functional.resample`` with its default arguments.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Zero crossings of the sinc on each side, and the cutoff as a share of the lower rate's Nyquist frequency.
_CROSSINGS = 6
_ROLLOFF = 0.99


def resample(wave: Tensor, from_rate: int, to_rate: int) -> Tensor:
    """(n, samples) at ``from_rate`` Hz to (n, ceil(samples * to_rate / from_rate)) at ``to_rate`` Hz."""
    common = math.gcd(from_rate, to_rate)
    step, phases = from_rate // common, to_rate // common
    if step == phases:
        return wave
    filters, reach = _filters(step, phases)
    padded = F.pad(wave, (reach, reach + step)).unsqueeze(1)
    # Each phase of the new samples has a filter of its own.
    new = F.conv1d(padded, filters.to(wave), stride=step).transpose(1, 2).flatten(1)
    return new[:, : math.ceil(wave.shape[-1] * phases / step)]


@lru_cache
def _filters(step: int, phases: int) -> tuple[Tensor, int]:
    """(phases, 1, taps) float64, and how many samples they reach before the new one's."""
    cutoff = _ROLLOFF * min(step, phases)
    reach = math.ceil(_CROSSINGS * step / cutoff)
    taps = torch.arange(-reach, reach + step, dtype=torch.float64) / step
    offsets = torch.arange(phases, dtype=torch.float64) / phases
    # The distance of each tap from the new sample, in zero crossings.
    distance = ((taps - offsets[:, None]) * cutoff).clamp(-_CROSSINGS, _CROSSINGS)
    window = torch.cos(distance * math.pi / _CROSSINGS / 2).square()
    return (torch.sinc(distance) * window * cutoff / step).unsqueeze(1), reach
