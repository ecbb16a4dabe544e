"""The Llama, Qwen2 and Qwen3 decoders: one plain forward pass over a flat batch of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from sglang_omni.model_runner.attention import attend
from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.rope import RotaryTable


class LayerWeights(NamedTuple):
    """One layer. Projections that read the same input are stacked: qkv, and gate over up."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Decoder:
    """Weights and forward pass. Keeps nothing of a request: keys and values go to the cache it is handed."""

    def __init__(
        self, config: DecoderConfig, embed: Tensor, layers: list[LayerWeights], norm: Tensor, lm_head: Tensor
    ) -> None:
        self.config = config
        self.dtype = embed.dtype
        self.embed_tokens = embed
        self.layers = layers
        self.norm = norm
        self.lm_head = lm_head
        self.rotary = RotaryTable(config, embed.dtype)

    @classmethod
    def from_checkpoint(cls, model_path: str | Path, dtype: torch.dtype) -> Decoder:
        """Loads a checkpoint directory of the hub's layout.

        Raises:
            FileNotFoundError, ValueError: a file or tensor is missing, misshapen or unknown.
        """
        config = DecoderConfig.from_dir(model_path)
        checkpoint = Checkpoint(model_path, dtype)
        embed = checkpoint.take("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        layers = [_load_layer(checkpoint, config, index) for index in range(config.num_hidden_layers)]
        norm = checkpoint.take("model.norm.weight", (config.hidden_size,))
        tied = config.tie_word_embeddings
        lm_head = embed if tied else checkpoint.take("lm_head.weight", tuple(embed.shape))
        checkpoint.finish(optional=("lm_head.weight",) if tied else ())
        return cls(config, embed, layers, norm, lm_head)

    def forward(self, batch: ForwardBatch, cache: PagedKVCache) -> Tensor:
        """Hidden states after the last norm, (T, hidden_size). Writes the batch's keys and values."""
        config = self.config
        eps = config.rms_norm_eps
        hidden_shape, head_shape = (config.hidden_size,), (config.head_dim,)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        cos, sin = self.rotary.at(batch.positions)
        hidden = embedding(batch.token_ids, self.embed_tokens)
        for index, layer in enumerate(self.layers):
            normed = rms_norm(hidden, hidden_shape, layer.input_norm, eps)
            qkv = linear(normed, layer.qkv, layer.qkv_bias).view(-1, heads + 2 * kv_heads, config.head_dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                qkv[:, :heads] = rms_norm(qkv[:, :heads], head_shape, layer.q_norm, eps)
                qkv[:, heads : heads + kv_heads] = rms_norm(
                    qkv[:, heads : heads + kv_heads], head_shape, layer.k_norm, eps
                )
            queries_keys = qkv[:, : heads + kv_heads]
            queries_keys.copy_(self.rotary.rotate(queries_keys, cos, sin))
            cache.write(index, batch.slots, qkv[:, heads:])
            attended = attend(qkv[:, :heads], index, cache, batch)
            hidden = hidden + linear(attended, layer.o, layer.o_bias)
            normed = rms_norm(hidden, hidden_shape, layer.post_norm, eps)
            gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            hidden = hidden + linear(silu(gate) * up, layer.down, layer.down_bias)
        return rms_norm(hidden, hidden_shape, self.norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, hidden_size) -> (S, vocab_size) float32."""
        return linear(hidden, self.lm_head).float()


def _load_layer(checkpoint: Checkpoint, config: DecoderConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.num_attention_heads * config.head_dim
    kv_size = config.num_key_value_heads * config.head_dim

    def take(name: str, *shape: int) -> Tensor:
        return checkpoint.take(f"{prefix}.{name}", shape)

    def stack(part: str, names: list[str], shapes: list[tuple[int, ...]]) -> Tensor:
        return checkpoint.take_stacked([f"{prefix}.{name}.{part}" for name in names], shapes)

    qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    gate_up = ["mlp.gate_proj", "mlp.up_proj"]
    return LayerWeights(
        input_norm=take("input_layernorm.weight", hidden),
        qkv=stack("weight", qkv, [(q_size, hidden), (kv_size, hidden), (kv_size, hidden)]),
        qkv_bias=stack("bias", qkv, [(q_size,), (kv_size,), (kv_size,)]) if config.qkv_bias else None,
        q_norm=take("self_attn.q_norm.weight", config.head_dim) if config.qk_norm else None,
        k_norm=take("self_attn.k_norm.weight", config.head_dim) if config.qk_norm else None,
        o=take("self_attn.o_proj.weight", hidden, q_size),
        o_bias=take("self_attn.o_proj.bias", hidden) if config.o_bias else None,
        post_norm=take("post_attention_layernorm.weight", hidden),
        gate_up=stack("weight", gate_up, [(inner, hidden), (inner, hidden)]),
        gate_up_bias=stack("bias", gate_up, [(inner,), (inner,)]) if config.mlp_bias else None,
        down=take("mlp.down_proj.weight", hidden, inner),
        down_bias=take("mlp.down_proj.bias", hidden) if config.mlp_bias else None,
    )
