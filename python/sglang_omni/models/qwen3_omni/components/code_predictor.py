"""The talker's code predictor: from a frame's first code to its others, one small decoder step each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.norm import norm_floor, unit_norm

# How transformers draws residual codes where the first codes are drawn; no request can say otherwise.
TOP_K = 50
TOP_P = 0.8


class PredictorConfig(NamedTuple):
    """Of ``code_predictor_config``, names as there. ``num_code_groups`` counts the first code."""

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

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], num_code_groups: int) -> PredictorConfig:
        """
        Raises:
            ValueError: The predictor has a feature that is not computed here.
        """
        rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        unknown = {
            "hidden_act": fields.get("hidden_act", "silu") != "silu",
            "attention_bias": bool(fields.get("attention_bias")),
            "rope_scaling": rope.get("rope_type", rope.get("type", "default")) != "default",
            "layer_types": set(fields.get("layer_types") or ()) - {"full_attention"},
            "num_code_groups": fields["num_code_groups"] != num_code_groups,
        }
        if refused := [name for name, present in unknown.items() if present]:
            raise ValueError(f"code_predictor_config: this {', '.join(refused)} is not supported")
        heads = int(fields["num_attention_heads"])
        return cls(
            vocab_size=int(fields["vocab_size"]),
            hidden_size=int(fields["hidden_size"]),
            intermediate_size=int(fields["intermediate_size"]),
            num_hidden_layers=int(fields["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(fields.get("num_key_value_heads") or heads),
            head_dim=int(fields.get("head_dim") or int(fields["hidden_size"]) // heads),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0),
            num_code_groups=num_code_groups,
        )


class _Layer(NamedTuple):
    """The weights of norms are folded into what follows them.

    ``turn_cos`` and ``turn_sin`` rotate queries and keys: (n, heads + kv_heads, head_dim) for each position
    that a step of n rows begins at.
    """

    qkv: Tensor
    turn_cos: list[Tensor]
    turn_sin: list[Tensor]
    o: Tensor
    gate_up: Tensor
    down: Tensor


class _Views(NamedTuple):
    """Of one layer's buffer at one position: where keys and values are written, and what is attended to."""

    slots: Tensor
    keys: Tensor
    values: Tensor


class CodePredictor:
    """G - 1 residual codes of a frame, for several sequences at once. Not thread-safe.

    Each frame starts anew: its keys and values lie in buffers that the next one overwrites, and the views of
    them that each step needs are made once for every size of batch.
    """

    def __init__(
        self,
        config: PredictorConfig,
        layers: Sequence[_Layer],
        norm: Tensor,
        embeddings: Sequence[Tensor],
        heads: Sequence[Tensor],
    ) -> None:
        self.config = config
        self._layers = layers
        self._norm = norm * config.hidden_size**0.5
        self._embeddings = embeddings
        self._heads = heads
        self._floor = norm_floor(config.hidden_size, config.rms_norm_eps, norm.device)
        self._head_floor = norm_floor(config.head_dim, config.rms_norm_eps, norm.device)
        # Of the first two positions, whose queries are computed together: the first sees itself alone.
        shared = config.num_attention_heads // config.num_key_value_heads
        mask = torch.tensor([[0.0, float("-inf")], [0.0, 0.0]], dtype=norm.dtype, device=norm.device)
        self._first_mask = mask.repeat(shared, 1)
        self._buffers: dict[int, list[list[_Views]]] = {}

    @classmethod
    def from_checkpoint(
        cls, config: PredictorConfig, checkpoint: Checkpoint, prefix: str, embeddings: Sequence[Tensor]
    ) -> CodePredictor:
        """
        Args:
            prefix: Of the tensors' names, ``"talker.code_predictor"`` in Qwen3-Omni's checkpoints.
            embeddings: G - 1 of (vocab_size, hidden_size), of the residual codes.

        Raises:
            ValueError: A tensor is missing or of another shape.
        """
        shape = (config.vocab_size, config.hidden_size)
        return cls(
            config,
            [
                _load_layer(config, checkpoint, f"{prefix}.model.layers.{i}")
                for i in range(config.num_hidden_layers)
            ],
            checkpoint.take(f"{prefix}.model.norm.weight", (config.hidden_size,)),
            embeddings,
            [
                checkpoint.take(f"{prefix}.lm_head.{g}.weight", shape)
                for g in range(config.num_code_groups - 1)
            ],
        )

    def predict(
        self, hidden: Tensor, first_codes: Tensor, first_embeds: Tensor, uniforms: Tensor | None = None
    ) -> Tensor:
        """Completes frames.

        Args:
            hidden: (B, hidden_size), the talker's output that each first code was chosen from.
            first_codes: (B,) int64.
            first_embeds: (B, hidden_size), the talker's embeddings of them.
            uniforms: (B, G - 1) float32 random numbers in [0, 1), one for each draw; a row below 0 takes the
                likeliest codes. None if all rows do.

        Returns:
            (B, G) int64, the first codes among them.
        """
        config = self.config
        batch = len(first_codes)
        codes = first_codes.new_empty(batch, config.num_code_groups)
        codes[:, 0] = first_codes
        rows, position = torch.stack((hidden, first_embeds), dim=1), 0
        for group in range(1, config.num_code_groups):
            logits = linear(self._forward(rows, position), self._heads[group - 1])
            code = logits.argmax(dim=-1)
            if uniforms is not None:
                drawn = uniforms[:, group - 1]
                code = torch.where(drawn < 0, code, _draw(logits.float(), drawn))
            codes[:, group] = code
            position = group + 1
            if position < config.num_code_groups:
                rows = embedding(code, self._embeddings[group - 1]).unsqueeze(1)
        return codes

    def _forward(self, rows: Tensor, position: int) -> Tensor:
        """(B, n, hidden_size) from ``position`` on -> the last's output (B, hidden_size).

        n is 2 for a frame's first rows, and 1 from then on.
        """
        config = self.config
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        batch, count, size = rows.shape
        if batch not in self._buffers:
            self._buffers[batch] = self._new_buffers(batch)
        hidden = rows.view(batch * count, size)
        for layer, views in zip(self._layers, self._buffers[batch], strict=True):
            slots, keys, values = views[position]
            qkv = linear(unit_norm(hidden, self._floor), layer.qkv)
            qkv = qkv.view(batch, count, heads + 2 * kv_heads, dim)
            turned = qkv.narrow(2, 0, heads + kv_heads)
            unit = unit_norm(turned, self._head_floor)
            torch.mul(unit, layer.turn_cos[position], out=turned)
            turned.addcmul_(unit.roll(dim // 2, -1), layer.turn_sin[position])
            slots.copy_(qkv.narrow(2, heads, 2 * kv_heads))
            # Query heads that share a key head lie where positions would: no key is repeated.
            queries = qkv.narrow(2, 0, heads).view(batch, count, kv_heads, -1, dim)
            if count == 1:
                out = scaled_dot_product_attention(queries.squeeze(1), keys, values)
            else:
                queries = queries.permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, dim)
                out = scaled_dot_product_attention(queries, keys, values, self._first_mask)
                out = out.view(batch, heads, count, dim).transpose(1, 2)
            hidden = linear(out.reshape(batch * count, heads * dim), layer.o).add_(hidden)
            gate, up = linear(unit_norm(hidden, self._floor), layer.gate_up).chunk(2, dim=-1)
            hidden = linear(silu(gate).mul_(up), layer.down).add_(hidden)
        return unit_norm(hidden.view(batch, count, size)[:, -1], self._floor) * self._norm

    def _new_buffers(self, batch: int) -> list[list[_Views]]:
        """Of each layer and each position of a step's first row."""
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


def _stop(position: int) -> int:
    return position + (2 if position == 0 else 1)


def _draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """(B, vocab_size) float32 and (B,) -> (B,): top-k, then top-p of what is left, at temperature 1."""
    values, ids = logits.topk(min(TOP_K, logits.shape[-1]), dim=-1)
    cumulative = values.softmax(dim=-1).cumsum(dim=-1)
    last = cumulative.shape[-1] - 1
    # The first that reaches the mass is the last that is kept.
    enough = torch.searchsorted(cumulative, torch.full_like(cumulative[:, :1], TOP_P)).clamp_(max=last)
    drawn = uniforms.unsqueeze(1) * cumulative.gather(1, enough)
    chosen = torch.searchsorted(cumulative, drawn, right=True)
    return ids.gather(1, chosen.minimum(enough)).squeeze(1)


def _load_layer(config: PredictorConfig, checkpoint: Checkpoint, prefix: str) -> _Layer:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads

    def take(name: str, *shape: int) -> Tensor:
        return checkpoint.take(f"{prefix}.{name}.weight", shape)

    def after_norm(norm: Tensor, *projections: Tensor) -> Tensor:
        weight = torch.cat(projections)
        return (weight.float() * norm.float() * hidden**0.5).to(weight.dtype)

    q_norm, k_norm = take("self_attn.q_norm", dim), take("self_attn.k_norm", dim)
    norms = torch.cat((q_norm.expand(heads, dim), k_norm.expand(kv_heads, dim))).float() * dim**0.5
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    angles = torch.outer(torch.arange(config.num_code_groups).float(), 1.0 / config.rope_theta**exponents)
    cos = torch.cat((angles, angles), -1).cos().unsqueeze(1).to(norms)
    # rotate_half(x * w) * sin == roll(x) * (roll(w) * signed sin).
    sin = torch.cat((-angles, angles), -1).sin().unsqueeze(1).to(norms)

    def by_position(turn: Tensor) -> list[Tensor]:
        turn = turn.to(q_norm.dtype)
        return [turn[position : _stop(position)] for position in range(len(turn))]

    return _Layer(
        qkv=after_norm(
            take("input_layernorm", hidden),
            take("self_attn.q_proj", heads * dim, hidden),
            take("self_attn.k_proj", kv_heads * dim, hidden),
            take("self_attn.v_proj", kv_heads * dim, hidden),
        ),
        turn_cos=by_position(cos * norms),
        turn_sin=by_position(sin * norms.roll(dim // 2, -1)),
        o=take("self_attn.o_proj", hidden, heads * dim),
        gate_up=after_norm(
            take("post_attention_layernorm", hidden),
            take("mlp.gate_proj", inner, hidden),
            take("mlp.up_proj", inner, hidden),
        ),
        down=take("mlp.down_proj", hidden, inner),
    )
