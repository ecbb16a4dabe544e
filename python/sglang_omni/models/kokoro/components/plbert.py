"""The encoder of phonemes: an ALBERT, which is one layer that is applied several times.

After transformers' ``AlbertModel``, whose names of weights it has, and whose defaults Kokoro's ``plbert``
leaves in force. Its import would take longer than all else of this model.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_EMBEDDING_SIZE, _TYPES, _EPS = 128, 2, 1e-12


class PlbertShape(NamedTuple):
    """``plbert`` of config.json."""

    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    num_hidden_layers: int


class Plbert(nn.Module):
    def __init__(self, shape: PlbertShape, symbols: int) -> None:
        super().__init__()
        self.layers = shape.num_hidden_layers
        self.embeddings = _Embeddings(shape, symbols)
        layer = _Layer(shape)
        inner = nn.ModuleDict({"albert_layers": nn.ModuleList([layer])})
        self.encoder = nn.ModuleDict(
            {
                "embedding_hidden_mapping_in": nn.Linear(_EMBEDDING_SIZE, shape.hidden_size),
                "albert_layer_groups": nn.ModuleList([inner]),
            }
        )
        # Of no effect on phonemes, and in every checkpoint.
        self.pooler = nn.Linear(shape.hidden_size, shape.hidden_size)
        self._layer = (layer,)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 (1, n) to float (1, n, hidden size)."""
        x: Tensor = self.encoder["embedding_hidden_mapping_in"](self.embeddings(ids))
        for _ in range(self.layers):
            x = self._layer[0](x)
        return x


class _Embeddings(nn.Module):
    def __init__(self, shape: PlbertShape, symbols: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(symbols, _EMBEDDING_SIZE)
        self.position_embeddings = nn.Embedding(shape.max_position_embeddings, _EMBEDDING_SIZE)
        self.token_type_embeddings = nn.Embedding(_TYPES, _EMBEDDING_SIZE)
        self.LayerNorm = nn.LayerNorm(_EMBEDDING_SIZE, _EPS)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.word_embeddings(ids) + self.token_type_embeddings.weight[0]
        x: Tensor = self.LayerNorm(words + self.position_embeddings.weight[: ids.shape[1]])
        return x


class _Attention(nn.Module):
    def __init__(self, shape: PlbertShape) -> None:
        super().__init__()
        size = shape.hidden_size
        self.heads = shape.num_attention_heads
        self.query, self.key, self.value, self.dense = (nn.Linear(size, size) for _ in range(4))
        self.LayerNorm = nn.LayerNorm(size, _EPS)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        heard = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        y: Tensor = self.LayerNorm(x + self.dense(heard))
        return y


class _Layer(nn.Module):
    def __init__(self, shape: PlbertShape) -> None:
        super().__init__()
        self.full_layer_layer_norm = nn.LayerNorm(shape.hidden_size, _EPS)
        self.attention = _Attention(shape)
        self.ffn = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.ffn_output = nn.Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        y: Tensor = self.full_layer_layer_norm(self.ffn_output(_gelu(self.ffn(x))) + x)
        return y


def _gelu(x: Tensor) -> Tensor:
    """Written out, because torch's own rounds otherwise, and the sum of pitches that follows would differ."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
