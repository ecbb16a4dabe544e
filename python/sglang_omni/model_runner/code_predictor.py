"""A small decoder that completes a frame of codes: the first code is given, each other one takes a step.

Qwen3-Omni's talker calls it code predictor, Fish Audio's models call it fast AR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.host_copies import to_host
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.norm import PlainNorm
from sglang_omni.model_runner.rope import inverse_frequencies

# Chooses codes (B,) int64 of one group (from 1 on) by their logits (B, vocab_size).
Choose = Callable[[Tensor, int], Tensor]


class PredictorConfig(NamedTuple):
    """A Llama-like decoder; names as in ``config.json``s. ``num_code_groups`` counts the first code.

    ``rope_scaling`` holds the parameters of a scaled rotary embedding, without theta.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    num_code_groups: int
    qk_norm: bool
    rope_scaling: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(cls, decoder: DecoderConfig, num_code_groups: int) -> Self:
        """Of a decoder's settings, those that a decoder of a frame has."""
        own = {name: getattr(decoder, name) for name in cls._fields if hasattr(decoder, name)}
        return cls(num_code_groups=num_code_groups, **own)


class PredictorLayer(NamedTuple):
    """One layer. The weights of norms are folded into the projections that follow.

    ``turn_cos`` and ``turn_sin`` rotate queries and keys: (n, heads + kv_heads, head_dim) for each position
    at which a step of n rows begins.
    """

    qkv: Tensor
    turn_cos: list[Tensor]
    turn_sin: list[Tensor]
    o: Tensor
    gate_up: Tensor
    down: Tensor


class _Views(NamedTuple):
    """Views of a layer's buffer at one position: slots to write, keys and values to attend to."""

    slots: Tensor
    keys: Tensor
    values: Tensor


class CodePredictor:
    """Predicts the G - 1 residual codes of a frame, for several sequences at once. Not thread-safe.

    A frame needs no keys and values of the one before: their buffers are overwritten. The views of them for
    each step are made once for every batch size.
    """

    def __init__(
        self,
        config: PredictorConfig,
        layers: Sequence[PredictorLayer],
        norm: Tensor,
        embeddings: Sequence[Tensor],
        heads: Sequence[Tensor],
    ) -> None:
        self.config = config
        self._layers = layers
        self._plain_norm = PlainNorm.of(config.hidden_size, config.rms_norm_eps, norm.device)
        self._head_norm = PlainNorm.of(config.head_dim, config.rms_norm_eps, norm.device)
        self._norm = norm * self._plain_norm.scale
        self._embeddings = embeddings
        self._heads = heads
        # The first two positions are computed together; the first must not see the second.
        shared = config.num_attention_heads // config.num_key_value_heads
        mask = torch.tensor([[0.0, float("-inf")], [0.0, 0.0]], dtype=norm.dtype, device=norm.device)
        self._first_mask = mask.repeat(shared, 1)
        self._buffers: dict[int, list[list[_Views]]] = {}

    @classmethod
    def from_checkpoint(
        cls,
        config: PredictorConfig,
        checkpoint: Checkpoint,
        prefix: str,
        embeddings: Sequence[Tensor],
        heads: Sequence[Tensor],
    ) -> CodePredictor:
        """
        Args:
            prefix: Of the tensors' names, which otherwise are those of a Qwen3 decoder.
            embeddings: (vocab_size, hidden_size) of each group that is read: G - 2 from group 1 on.
            heads: (vocab_size, hidden_size) of each group that is chosen: G - 1.

        Raises:
            ValueError: A tensor is missing or of another shape.
        """
        layers = [
            _load_layer(config, checkpoint, f"{prefix}.layers.{index}")
            for index in range(config.num_hidden_layers)
        ]
        norm = checkpoint.take(f"{prefix}.norm.weight", (config.hidden_size,))
        return cls(config, layers, norm, embeddings, heads)

    def predict(
        self,
        hidden: Tensor,
        first_codes: Tensor,
        first_embeds: Tensor,
        choose: Choose | None = None,
    ) -> Tensor:
        """Completes frames.

        Args:
            hidden: (B, hidden_size), the main model's output from which each first code was chosen.
            first_codes: (B,) int64.
            first_embeds: (B, hidden_size), their embeddings.
            choose: None for the likeliest codes.

        Returns:
            (B, G) int64, including the first codes.
        """
        groups = self.config.num_code_groups
        codes = [first_codes]
        rows, position = torch.stack((hidden, first_embeds), dim=1), 0
        for group in range(1, groups):
            logits = linear(self._forward(rows, position), self._heads[group - 1])
            code = logits.argmax(dim=-1) if choose is None else choose(logits, group)
            codes.append(code)
            position = group + 1
            if position < groups:
                rows = embedding(code, self._embeddings[group - 1]).unsqueeze(1)
        return torch.stack(codes, dim=1)

    def _forward(self, rows: Tensor, position: int) -> Tensor:
        """(B, n, hidden_size) from ``position`` on -> the output of the last row, (B, hidden_size).

        n is 2 for a frame's first rows, and 1 afterwards.
        """
        config = self.config
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        batch, count, size = rows.shape
        if batch not in self._buffers:
            self._buffers[batch] = self._new_buffers(batch)
        norm, head_norm = self._plain_norm, self._head_norm
        hidden = rows.view(batch * count, size)
        for layer, views in zip(self._layers, self._buffers[batch], strict=True):
            slots, keys, values = views[position]
            qkv = linear(norm(hidden), layer.qkv)
            qkv = qkv.view(batch, count, heads + 2 * kv_heads, dim)
            turned = qkv.narrow(2, 0, heads + kv_heads)
            if not config.qk_norm:
                unit = turned
            elif head_norm.floor is None:
                # The fused kernel would copy a part before it reads it.
                unit = head_norm(qkv).narrow(2, 0, heads + kv_heads)
            else:
                unit = head_norm(turned)
            swapped = unit.roll(dim // 2, -1)
            torch.mul(unit, layer.turn_cos[position], out=turned)
            turned.addcmul_(swapped, layer.turn_sin[position])
            slots.copy_(qkv.narrow(2, heads, 2 * kv_heads))
            # Query heads that share a key head take the dimension of positions: no key is repeated.
            queries = qkv.narrow(2, 0, heads).view(batch, count, kv_heads, -1, dim)
            if count == 1:
                out = scaled_dot_product_attention(queries.squeeze(1), keys, values)
            else:
                queries = queries.permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, dim)
                out = scaled_dot_product_attention(queries, keys, values, self._first_mask)
                out = out.view(batch, heads, count, dim).transpose(1, 2)
            hidden = _add_linear(hidden, out.reshape(batch * count, heads * dim), layer.o)
            gate, up = linear(norm(hidden), layer.gate_up).chunk(2, dim=-1)
            hidden = _add_linear(hidden, silu(gate).mul_(up), layer.down)
        return norm(hidden.view(batch, count, size)[:, -1]) * self._norm

    def _new_buffers(self, batch: int) -> list[list[_Views]]:
        """For each layer, the views at each position of a step's first row."""
        config = self.config
        kv_heads, positions = config.num_key_value_heads, config.num_code_groups
        buffers: list[list[_Views]] = []
        for _ in self._layers:
            cache = self._norm.new_zeros(batch, 2 * kv_heads, positions, config.head_dim)
            buffers.append([])
            for position in range(positions):
                stop = _stop(position)
                slots = cache[:, :, position:stop].transpose(1, 2)
                buffers[-1].append(_Views(slots, cache[:, :kv_heads, :stop], cache[:, kv_heads:, :stop]))
        return buffers


def _add_linear(hidden: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """``hidden + rows @ weight.T``; may overwrite ``hidden``. On a GPU the product takes the sum along."""
    if hidden.device.type == "cuda":
        return hidden.addmm_(rows, weight.t())
    return linear(rows, weight).add_(hidden)


def _stop(position: int) -> int:
    return position + (2 if position == 0 else 1)


def _load_layer(config: PredictorConfig, checkpoint: Checkpoint, prefix: str) -> PredictorLayer:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads

    def take(name: str, *shape: int) -> Tensor:
        return checkpoint.take(f"{prefix}.{name}.weight", shape)

    def after_norm(norm: Tensor, *projections: Tensor) -> Tensor:
        weight = torch.cat(projections)
        scale = PlainNorm.of(hidden, config.rms_norm_eps, weight.device).scale
        return (weight.float() * norm.float() * scale).to(weight.dtype)

    norms = torch.ones(heads + kv_heads, dim)
    if config.qk_norm:
        q_norm, k_norm = take("self_attn.q_norm", dim), take("self_attn.k_norm", dim)
        norms = to_host(torch.cat((q_norm.expand(heads, dim), k_norm.expand(kv_heads, dim))).float())
        norms *= PlainNorm.of(dim, config.rms_norm_eps, q_norm.device).scale
    angles = torch.outer(torch.arange(config.num_code_groups).float(), inverse_frequencies(config))
    cos = torch.cat((angles, angles), -1).cos().unsqueeze(1)
    # rotate_half(x * w) * sin == roll(x) * (roll(w) * signed sin).
    sin = torch.cat((-angles, angles), -1).sin().unsqueeze(1)

    o = take("self_attn.o_proj", hidden, heads * dim)

    def by_position(turn: Tensor) -> list[Tensor]:
        turn = turn.to(o)
        return [turn[position : _stop(position)] for position in range(len(turn))]

    return PredictorLayer(
        qkv=after_norm(
            take("input_layernorm", hidden),
            take("self_attn.q_proj", heads * dim, hidden),
            take("self_attn.k_proj", kv_heads * dim, hidden),
            take("self_attn.v_proj", kv_heads * dim, hidden),
        ),
        turn_cos=by_position(cos * norms),
        turn_sin=by_position(sin * norms.roll(dim // 2, -1)),
        o=o,
        gate_up=after_norm(
            take("post_attention_layernorm", hidden),
            take("mlp.gate_proj", inner, hidden),
            take("mlp.up_proj", inner, hidden),
        ),
        down=take("mlp.down_proj", hidden, inner),
    )
