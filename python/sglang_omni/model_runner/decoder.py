"""Decoders of Llama, Qwen2, Qwen3 and their Omni models: one plain forward over a flat batch of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from sglang_omni.model_runner.attention import attend
from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.dual_ffn import AudioWeights, RowKinds
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.linear import Linear
from sglang_omni.model_runner.loader import Checkpoint, OpenCheckpoint
from sglang_omni.model_runner.media import Deepstack
from sglang_omni.model_runner.mlp import DenseMLP, SparseMLP, load_mlp
from sglang_omni.model_runner.norm import RMSNorm
from sglang_omni.model_runner.parallel import SINGLE_RANK, TensorParallelGroup
from sglang_omni.model_runner.rope import RotaryEmbedding


@dataclass(frozen=True)
class WeightNames:
    """The names of a decoder's tensors in a checkpoint; ``layers`` is the prefix of ``.{i}.``"""

    embed_tokens: str = "model.embed_tokens.weight"
    layers: str = "model.layers"
    norm: str = "model.norm.weight"
    lm_head: str = "lm_head.weight"


class LayerWeights(NamedTuple):
    """One layer. Projections with the same input are stacked, and so are the norms of queries and keys.

    ``audio`` is what rows of audio pass in place of the norms and the MLP; None if they are as all others.
    """

    input_norm: RMSNorm
    qkv: Linear
    qk_norm: RMSNorm | None
    o: Linear
    post_norm: RMSNorm
    mlp: DenseMLP | SparseMLP
    audio: AudioWeights | None = None

    def normed(self, hidden: Tensor, kinds: RowKinds | None) -> Tensor:
        """The input of the attention, (T, hidden_size)."""
        audio = self.audio
        if audio is None:
            return self.input_norm(hidden)
        if kinds is None:
            return audio.input_norm(hidden)
        return kinds.apply(lambda rows: self.input_norm(rows), lambda rows: audio.input_norm(rows), hidden)

    def fed_forward(self, hidden: Tensor, kinds: RowKinds | None) -> Tensor:
        """What the MLP adds to ``hidden`` (T, hidden_size)."""
        audio = self.audio
        if audio is None:
            return self.mlp(self.post_norm(hidden))
        if kinds is None:
            return audio.mlp(audio.post_norm(hidden))
        return kinds.apply(
            lambda rows: self.mlp(self.post_norm(rows)), lambda rows: audio.mlp(audio.post_norm(rows)), hidden
        )


class Decoder:
    """Weights and forward pass. Keys and values go into the cache argument: no request's data stays here."""

    def __init__(
        self,
        config: DecoderConfig,
        embed: Tensor,
        layers: list[LayerWeights],
        norm: RMSNorm,
        lm_head: Linear,
        group: TensorParallelGroup = SINGLE_RANK,
    ) -> None:
        self.config = config
        self.group = group
        self.dtype = embed.dtype
        self.embed_tokens = embed
        self.layers = layers
        self.norm = norm
        self.lm_head = lm_head
        self.device = embed.device
        self.rotary = RotaryEmbedding(config, embed.dtype, embed.device)

    @classmethod
    def from_checkpoint(
        cls,
        model_path: str | Path,
        dtype: torch.dtype,
        config: DecoderConfig | None = None,
        names: WeightNames = WeightNames(),
        component: str = "",
        open_checkpoint: OpenCheckpoint = Checkpoint,
        group: TensorParallelGroup = SINGLE_RANK,
        device: torch.device | str = "cpu",
    ) -> Decoder:
        """Loads a checkpoint directory in the hub's layout, or one rank's shard of it.

        Args:
            config: Of the whole decoder; read from config.json if None. The result's ``config`` has the
                number of heads of its rank.
            component: Prefix of the names of the decoder's tensors. One that is not used is an error.
            device: Of the weights.

        Raises:
            FileNotFoundError, ValueError: A file or tensor is missing, misshapen or unknown.
        """
        config = config or DecoderConfig.from_dir(model_path)
        local = group.split_heads(config)
        checkpoint = open_checkpoint(model_path, dtype, component, device=device)
        width = config.embedding_size or config.hidden_size
        embed = checkpoint.take(names.embed_tokens, (config.vocab_size, width))
        layers = [
            _load_layer(checkpoint, config, index, f"{names.layers}.{index}", group)
            for index in range(config.num_hidden_layers)
        ]
        norm = RMSNorm.of(checkpoint.take(names.norm, (config.hidden_size,)), config.rms_norm_eps)
        tied = config.tie_word_embeddings
        lm_head = embed if tied else checkpoint.take(names.lm_head, (config.vocab_size, config.hidden_size))
        checkpoint.finish(optional=(names.lm_head,) if tied else ())
        return cls(local, embed, layers, norm, Linear(group.shard_rows_padded(lm_head)), group)

    def embed(self, token_ids: Tensor) -> Tensor:
        """(T,) -> (T, hidden_size), a new tensor."""
        return embedding(token_ids, self.embed_tokens)

    def forward(
        self,
        hidden: Tensor,
        batch: ForwardBatch,
        cache: PagedKVCache,
        *,
        deepstack: Deepstack | None = None,
        kinds: RowKinds | None = None,
        capture: bool = False,
    ) -> Tensor:
        """Hidden states after the last norm, (T, hidden_size). Writes the batch's keys and values.

        Args:
            hidden: (T, hidden_size), the input rows.
            deepstack: Added to some rows after the first layers.
            kinds: Of a decoder with ``dual_ffn``, which rows are of audio; None if all are.
            capture: True to store the hidden states of the cache's ``capture_layer``, if it has one.
        """
        config = self.config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        cos, sin = self.rotary.at(batch.positions)
        capture_layer = cache.capture_layer if capture else None
        if capture_layer == 0:
            cache.write_captured(batch.slots, hidden)
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(layer.normed(hidden, kinds)).view(-1, heads + 2 * kv_heads, config.head_dim)
            queries_keys = qkv[:, : heads + kv_heads]
            normed = queries_keys if layer.qk_norm is None else layer.qk_norm(queries_keys)
            queries_keys.copy_(self.rotary.rotate(normed, cos, sin))
            cache.write(index, batch.slots, qkv[:, heads:])
            sliding = index in config.sliding_layers
            attended = attend(qkv[:, :heads], index, cache, batch, sliding=sliding)
            hidden = hidden + self.group.all_reduce(layer.o(attended))
            hidden = hidden + self.group.all_reduce(layer.fed_forward(hidden, kinds))
            if capture_layer == index + 1 < len(self.layers):
                cache.write_captured(batch.slots, hidden)
            if deepstack is not None and index < len(deepstack.levels):
                hidden.index_add_(0, deepstack.rows, deepstack.levels[index].to(hidden))
        hidden = self.norm(hidden)
        if capture_layer == len(self.layers):
            cache.write_captured(batch.slots, hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, hidden_size) -> (S, vocab_size) float32."""
        return self.group.all_gather_columns(self.lm_head(hidden))[:, : self.config.vocab_size].float()


def _load_layer(
    checkpoint: Checkpoint, config: DecoderConfig, index: int, prefix: str, group: TensorParallelGroup
) -> LayerWeights:
    hidden, kv_heads = config.hidden_size, config.num_key_value_heads
    q_size = config.num_attention_heads * config.head_dim

    def take(name: str, *shape: int) -> Tensor:
        return checkpoint.take(f"{prefix}.{name}", shape)

    def stack_qkv(part: str, *inputs: int) -> Tensor:
        shards = []
        for name, heads in (("q", config.num_attention_heads), ("k", kv_heads), ("v", kv_heads)):
            weight = take(f"self_attn.{name}_proj.{part}", heads * config.head_dim, *inputs)
            shards.append(group.shard_rows(weight, heads))
        return torch.cat(shards)

    def norm(name: str) -> RMSNorm:
        return RMSNorm.of(take(f"{name}.weight", hidden), config.rms_norm_eps)

    def qk_norm() -> RMSNorm:
        local = group.split_heads(config)
        weights = [take(f"self_attn.{name}_norm.weight", config.head_dim) for name in "qk"]
        counts = (local.num_attention_heads, local.num_key_value_heads)
        per_head = [weight.expand(count, -1) for weight, count in zip(weights, counts, strict=True)]
        return RMSNorm.of(torch.cat(per_head), config.rms_norm_eps)

    return LayerWeights(
        input_norm=norm("input_layernorm"),
        qkv=Linear(stack_qkv("weight", hidden), stack_qkv("bias") if config.qkv_bias else None),
        qk_norm=qk_norm() if config.qk_norm else None,
        o=Linear(
            group.shard_columns(take("self_attn.o_proj.weight", hidden, q_size)),
            group.bias_on_rank0(take("self_attn.o_proj.bias", hidden)) if config.o_bias else None,
        ),
        post_norm=norm("post_attention_layernorm"),
        mlp=load_mlp(checkpoint, config, index, f"{prefix}.mlp", group),
        audio=AudioWeights(
            norm("audio_input_layernorm"),
            norm("audio_post_attention_layernorm"),
            load_mlp(checkpoint, config, index, f"{prefix}.audio_mlp", group),
        )
        if config.dual_ffn
        else None,
    )
