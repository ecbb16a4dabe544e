"""The talker's code predictor: from a frame's first code to its others, one small decoder step each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from sglang_omni.model_runner.loader import Checkpoint

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
    """``turn_cos`` and ``turn_sin`` are (G + 1, heads + kv_heads, head_dim): the rotation of every position,
    with the weights of the norms before it.
    """

    input_norm: Tensor
    qkv: Tensor
    turn_cos: Tensor
    turn_sin: Tensor
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


class CodePredictor:
    """G - 1 residual codes of a frame, for several sequences at once.

    Each frame starts anew: its keys and values live in a buffer that the next frame overwrites. Not
    thread-safe.
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
        self._norm = norm
        self._embeddings = embeddings
        self._heads = heads
        # Of the first two positions, whose queries are computed together: the first sees itself alone.
        groups = config.num_attention_heads // config.num_key_value_heads
        hidden = torch.tensor([[0.0, float("-inf")], [0.0, 0.0]], dtype=norm.dtype, device=norm.device)
        self._first_mask = hidden.repeat(groups, 1)
        self._capacity = 0
        self._keys_values: list[Tensor] = []

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
        if batch > self._capacity:
            self._grow(batch)
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
        eps, shape = config.rms_norm_eps, (config.hidden_size,)
        batch, count, _ = rows.shape
        stop = position + count
        mask = self._first_mask if count == 2 else None
        hidden = rows
        for layer, cache in zip(self._layers, self._keys_values, strict=True):
            normed = rms_norm(hidden, shape, layer.input_norm, eps)
            qkv = linear(normed, layer.qkv).view(batch, count, heads + 2 * kv_heads, dim)
            turned = qkv[:, :, : heads + kv_heads]
            normed = rms_norm(turned, (dim,), None, eps)
            torch.addcmul(
                normed * layer.turn_cos[position:stop],
                normed.roll(dim // 2, -1),
                layer.turn_sin[position:stop],
                out=turned,
            )
            cache[:batch, :, position:stop].copy_(qkv[:, :, heads:].transpose(1, 2))
            cached = cache[:batch, :, :stop]
            # Query heads that share a key head lie where positions would: no key is repeated.
            queries = qkv[:, :, :heads].view(batch, count, kv_heads, heads // kv_heads, dim)
            queries = queries.permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, dim)
            out = scaled_dot_product_attention(
                queries, cached[:, :kv_heads], cached[:, kv_heads:], attn_mask=mask
            )
            out = out.view(batch, heads, count, dim).transpose(1, 2).reshape(batch, count, heads * dim)
            hidden = hidden + linear(out, layer.o)
            normed = rms_norm(hidden, shape, layer.post_norm, eps)
            gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + linear(silu(gate) * up, layer.down)
        return rms_norm(hidden[:, -1], shape, self._norm, eps)

    def _grow(self, capacity: int) -> None:
        config = self.config
        shape = (capacity, 2 * config.num_key_value_heads, config.num_code_groups, config.head_dim)
        self._keys_values = [self._norm.new_zeros(shape) for _ in self._layers]
        self._capacity = capacity


def _draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """(B, vocab_size) float32 and (B,) -> (B,): top-k, then top-p of what is left, at temperature 1."""
    values, ids = logits.topk(min(TOP_K, logits.shape[-1]), dim=-1)
    weights = values.softmax(dim=-1)
    before = weights.cumsum(dim=-1) - weights
    cumulative = torch.where(before < TOP_P, weights, 0.0).cumsum(dim=-1)
    chosen = torch.searchsorted(cumulative, uniforms.unsqueeze(1) * cumulative[:, -1:], right=True)
    return ids.gather(1, chosen.clamp_(max=ids.shape[-1] - 1)).squeeze(1)


def _load_layer(config: PredictorConfig, checkpoint: Checkpoint, prefix: str) -> _Layer:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads

    def take(name: str, *shape: int) -> Tensor:
        return checkpoint.take(f"{prefix}.{name}.weight", shape)

    norms = torch.cat(
        (
            take("self_attn.q_norm", dim).expand(heads, dim),
            take("self_attn.k_norm", dim).expand(kv_heads, dim),
        )
    )
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    angles = torch.outer(torch.arange(config.num_code_groups).float(), 1.0 / config.rope_theta**exponents)
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((-angles, angles), -1).sin()
    return _Layer(
        input_norm=take("input_layernorm", hidden),
        qkv=torch.cat(
            (
                take("self_attn.q_proj", heads * dim, hidden),
                take("self_attn.k_proj", kv_heads * dim, hidden),
                take("self_attn.v_proj", kv_heads * dim, hidden),
            )
        ),
        turn_cos=cos.unsqueeze(1).to(norms.dtype) * norms,
        # rotate_half(x * w) * sin == roll(x) * (roll(w) * signed sin).
        turn_sin=sin.unsqueeze(1).to(norms.dtype) * norms.roll(dim // 2, -1),
        o=take("self_attn.o_proj", hidden, heads * dim),
        post_norm=take("post_attention_layernorm", hidden),
        gate_up=torch.cat((take("mlp.gate_proj", inner, hidden), take("mlp.up_proj", inner, hidden))),
        down=take("mlp.down_proj", hidden, inner),
    )
