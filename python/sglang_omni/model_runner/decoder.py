"""The decoders of Llama, Qwen2, Qwen3 and Qwen3-Omni: one plain forward pass over a flat batch of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm

from sglang_omni.model_runner.attention import attend
from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.loader import Checkpoint, OpenCheckpoint
from sglang_omni.model_runner.media import Deepstack
from sglang_omni.model_runner.mlp import DenseMLP, SparseMLP, load_mlp
from sglang_omni.model_runner.parallel import ALONE, TensorParallelGroup
from sglang_omni.model_runner.rope import RotaryEmbedding


@dataclass(frozen=True)
class WeightNames:
    """Where a checkpoint keeps a decoder: names of tensors, ``layers`` being the prefix of ``.{i}.``"""

    embed_tokens: str = "model.embed_tokens.weight"
    layers: str = "model.layers"
    norm: str = "model.norm.weight"
    lm_head: str = "lm_head.weight"


class LayerWeights(NamedTuple):
    """One layer. The projections to queries, keys and values read the same input: they are stacked."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    post_norm: Tensor
    mlp: DenseMLP | SparseMLP


class Decoder:
    """Weights and forward pass. Keeps nothing of a request: keys and values go to the cache it is handed."""

    def __init__(
        self,
        config: DecoderConfig,
        embed: Tensor,
        layers: list[LayerWeights],
        norm: Tensor,
        lm_head: Tensor,
        group: TensorParallelGroup = ALONE,
    ) -> None:
        self.config = config
        self.group = group
        self.dtype = embed.dtype
        self.embed_tokens = embed
        self.layers = layers
        self.norm = norm
        self.lm_head = lm_head
        self.rotary = RotaryEmbedding(config, embed.dtype)

    @classmethod
    def from_checkpoint(
        cls,
        model_path: str | Path,
        dtype: torch.dtype,
        config: DecoderConfig | None = None,
        names: WeightNames = WeightNames(),
        component: str = "",
        open_checkpoint: OpenCheckpoint = Checkpoint,
        group: TensorParallelGroup = ALONE,
    ) -> Decoder:
        """Loads a checkpoint directory of the hub's layout, or one rank's part of it.

        Args:
            config: Of the decoder; what config.json describes where None. The decoder's own ``config`` counts
                the heads that its rank has.
            component: Prefix of all the tensors that are the decoder's; one of them left over is an error.

        Raises:
            FileNotFoundError, ValueError: A file or tensor is missing, misshapen or unknown.
        """
        config = config or DecoderConfig.from_dir(model_path)
        local = group.split_heads(config)
        checkpoint = open_checkpoint(model_path, dtype, component)
        embed = checkpoint.take(names.embed_tokens, (config.vocab_size, config.hidden_size))
        layers = [
            _load_layer(checkpoint, config, index, f"{names.layers}.{index}", group)
            for index in range(config.num_hidden_layers)
        ]
        norm = checkpoint.take(names.norm, (config.hidden_size,))
        tied = config.tie_word_embeddings
        lm_head = embed if tied else checkpoint.take(names.lm_head, tuple(embed.shape))
        checkpoint.finish(optional=(names.lm_head,) if tied else ())
        return cls(local, embed, layers, norm, group.padded_rows(lm_head), group)

    def embed(self, token_ids: Tensor) -> Tensor:
        """(T,) -> (T, hidden_size), a tensor of the caller's own."""
        return embedding(token_ids, self.embed_tokens)

    def forward(
        self,
        hidden: Tensor,
        batch: ForwardBatch,
        cache: PagedKVCache,
        *,
        deepstack: Deepstack | None = None,
        tap: bool = False,
    ) -> Tensor:
        """Hidden states after the last norm, (T, hidden_size). Writes the batch's keys and values.

        Args:
            hidden: (T, hidden_size), the input rows.
            deepstack: Added to some rows between the first layers.
            tap: Whether to keep the rows of the cache's ``tap_layer``.
        """
        config = self.config
        eps = config.rms_norm_eps
        hidden_shape, head_shape = (config.hidden_size,), (config.head_dim,)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        cos, sin = self.rotary.at(batch.positions)
        tap_layer = cache.tap_layer if tap else None
        if tap_layer == 0:
            cache.write_tapped(batch.slots, hidden)
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
            hidden = hidden + self.group.sum(linear(attended, layer.o, layer.o_bias))
            hidden = hidden + self.group.sum(layer.mlp(rms_norm(hidden, hidden_shape, layer.post_norm, eps)))
            if tap_layer == index + 1 < len(self.layers):
                cache.write_tapped(batch.slots, hidden)
            if deepstack is not None and index < len(deepstack.levels):
                hidden.index_add_(0, deepstack.rows, deepstack.levels[index].to(hidden))
        hidden = rms_norm(hidden, hidden_shape, self.norm, eps)
        if tap_layer == len(self.layers):
            cache.write_tapped(batch.slots, hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, hidden_size) -> (S, vocab_size) float32."""
        return self.group.join_columns(linear(hidden, self.lm_head))[:, : self.config.vocab_size].float()


def _load_layer(
    checkpoint: Checkpoint, config: DecoderConfig, index: int, prefix: str, group: TensorParallelGroup
) -> LayerWeights:
    hidden = config.hidden_size
    q_size = config.num_attention_heads * config.head_dim

    def take(name: str, *shape: int) -> Tensor:
        return checkpoint.take(f"{prefix}.{name}", shape)

    def stack_qkv(part: str, *inputs: int) -> Tensor:
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        return torch.cat(
            [
                group.rows(take(f"self_attn.{name}_proj.{part}", count * config.head_dim, *inputs), count)
                for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
            ]
        )

    return LayerWeights(
        input_norm=take("input_layernorm.weight", hidden),
        qkv=stack_qkv("weight", hidden),
        qkv_bias=stack_qkv("bias") if config.qkv_bias else None,
        q_norm=take("self_attn.q_norm.weight", config.head_dim) if config.qk_norm else None,
        k_norm=take("self_attn.k_norm.weight", config.head_dim) if config.qk_norm else None,
        o=group.columns(take("self_attn.o_proj.weight", hidden, q_size)),
        o_bias=group.once(take("self_attn.o_proj.bias", hidden)) if config.o_bias else None,
        post_norm=take("post_attention_layernorm.weight", hidden),
        mlp=load_mlp(checkpoint, config, index, f"{prefix}.mlp", group),
    )
