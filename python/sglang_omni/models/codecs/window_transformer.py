"""The small transformers inside codecs: each step sees itself and the steps of a window before it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from sglang_omni.model_runner.norm import RMSNorm
from sglang_omni.models.codecs.streamed import StreamMemory


def window_mask(positions: Tensor, steps: Tensor, before: int) -> Tensor:
    """(n, m, before + m) bool: which keys each of m steps sees, the ``before`` earlier ones first.

    A step sees itself and up to ``before`` steps before it, but no zeros in place of steps before the first.

    Args:
        positions: (n, 1) int64, the number of steps that came before.
        steps: 0 to m - 1.
    """
    key = torch.arange(before + len(steps), device=positions.device)
    query = steps.unsqueeze(-1)
    return (key >= query) & (key <= query + before) & (key >= before - positions).unsqueeze(1)


def as_neighbours(weight: Tensor, head_dim: int) -> Tensor:
    """A projection (heads * head_dim, hidden) to queries or keys, or its bias, for a ``WindowTransformer``,
    of a model whose rotary positions turn each channel of a head's first half with one of the second.

    Both channels become neighbours. If queries and keys are ordered alike, their products stay the same.
    """
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


class WindowLayer(NamedTuple):
    """A layer's weights; those of its two norms, and its scales, (hidden,); None for a bias that is not."""

    attention_norm: RMSNorm
    qkv: Tensor
    output: Tensor
    attention_scale: Tensor
    mlp_norm: RMSNorm
    gate: Tensor
    up: Tensor
    down: Tensor
    mlp_scale: Tensor
    qkv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    down_bias: Tensor | None = None


class WindowTransformer:
    """A transformer with a SwiGLU, scaled branches, and rotary positions that turn neighbouring channels.

    Args:
        norm: After the last layer.
        window: Steps that a step sees, itself included.
        head_dim: Channels of a head; there are as many heads of keys as of queries.
        rope_base: The longest wavelength of the rotary positions is about this times 2 pi.
        table_dtype: The dtype to which the sines and cosines are rounded.
    """

    def __init__(
        self,
        layers: list[WindowLayer],
        norm: RMSNorm,
        *,
        window: int,
        head_dim: int,
        rope_base: float,
        table_dtype: torch.dtype,
    ) -> None:
        self._layers = layers
        self._norm = norm
        self._before = window - 1
        self._head_dim = head_dim
        self._table_dtype = table_dtype
        exponents = torch.arange(0, head_dim, 2).float() / head_dim
        self._frequencies = (1.0 / rope_base**exponents).to(norm.weight.device)

    def __call__(self, rows: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        """Rows (n, steps, hidden) to rows, the first of them at ``positions`` (n, 1)."""
        steps = torch.arange(rows.shape[1], device=rows.device)
        mask = window_mask(positions, steps, self._before).unsqueeze(1)
        angles = (positions + steps).float().unsqueeze(-1) * self._frequencies
        # (n, steps, 1, head_dim / 2), for all heads.
        cos, sin = (wave.to(self._table_dtype).float().unsqueeze(2) for wave in (angles.cos(), angles.sin()))
        for layer in self._layers:
            attended = self._attend(layer, layer.attention_norm(rows), cos, sin, mask, memory)
            attended = linear(attended, layer.output, layer.output_bias)
            rows = torch.addcmul(rows, attended, layer.attention_scale)
            hidden = layer.mlp_norm(rows)
            hidden = silu(linear(hidden, layer.gate)).mul_(linear(hidden, layer.up))
            hidden = linear(hidden, layer.down, layer.down_bias)
            rows = torch.addcmul(rows, hidden, layer.mlp_scale)
        return self._norm(rows)

    def _attend(
        self, layer: WindowLayer, rows: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, memory: StreamMemory
    ) -> Tensor:
        count, steps, _ = rows.shape
        heads = linear(rows, layer.qkv, layer.qkv_bias).view(count, steps, 3, -1, self._head_dim)
        queries, keys, values = heads.unbind(dim=2)
        queries, keys = _turned(queries, cos, sin).transpose(1, 2), _turned(keys, cos, sin).transpose(1, 2)
        keys = memory.extend(keys, self._before, dim=-2)
        values = memory.extend(values.transpose(1, 2), self._before, dim=-2)
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return attended.transpose(1, 2).reshape(count, steps, -1)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads (n, steps, heads, head_dim), each pair of neighbouring channels turned by its angle."""
    even, odd = heads.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return turned.flatten(-2).to(heads.dtype)
