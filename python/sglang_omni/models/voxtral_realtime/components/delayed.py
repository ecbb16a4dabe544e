"""The weights of Voxtral Realtime's decoder for one delay between sound and text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from sglang_omni.model_runner.loader import Checkpoint

# Inner size of what makes a layer's scale, in transformers' class.
ADAPTER_SIZE = 32
_THETA = 10_000.0
_SCALED = "post_attention_layernorm.weight"


class DelayedCheckpoint(Checkpoint):
    """A decoder's weights, whose layers scale the output of their second norm by what they make of the delay.
    As that is the same for all tokens, it is part of the norm's weight here.

    Args:
        delay: Tokens by which text follows sound.
        args, options: Of ``Checkpoint``.
    """

    def __init__(self, delay: int, hidden_size: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._hidden_size = hidden_size
        half = hidden_size // 2
        angles = delay * torch.exp(-math.log(_THETA) * torch.arange(half).float() / half)
        self._time = torch.cat((angles.cos(), angles.sin()))

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        weight = super().take(name, shape)
        if not name.endswith(_SCALED):
            return weight
        adapter = f"{name.removesuffix(_SCALED)}ada_rms_norm.linear"
        first = super().take(f"{adapter}1.weight", (ADAPTER_SIZE, self._hidden_size)).float()
        second = super().take(f"{adapter}2.weight", (self._hidden_size, ADAPTER_SIZE)).float()
        scale = 1 + linear(gelu(linear(self._time.to(first.device), first)), second)
        return (weight.float() * scale).to(weight.dtype)
