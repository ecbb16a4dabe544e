"""Whisper's two networks: the encoder hears a window, the decoder writes what is said in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from sglang_omni.models.whisper.components.checkpoint import WhisperShape
from sglang_omni.models.whisper.components.decoder_cache import DecoderCache


class _Projections(nn.Module):
    """The four products of an attention, by the checkpoint's names."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(size, size)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size)
        self.out_proj = nn.Linear(size, size)
        self._heads = heads

    def split(self, rows: Tensor) -> Tensor:
        """(B, n, hidden_size) to (B, heads, n, head_dim)."""
        return rows.unflatten(-1, (self._heads, -1)).transpose(1, 2)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        """(B, n, hidden_size) from a query (B, heads, n, head_dim); ``mask`` is True where it may look."""
        found = scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=causal)
        return self.out_proj(found.transpose(1, 2).flatten(2))


class _EncoderLayer(nn.Module):
    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.self_attn = _Projections(shape.hidden_size, shape.encoder_heads)
        self.self_attn_layer_norm = nn.LayerNorm(shape.hidden_size)
        self.fc1 = nn.Linear(shape.hidden_size, shape.encoder_ffn)
        self.fc2 = nn.Linear(shape.encoder_ffn, shape.hidden_size)
        self.final_layer_norm = nn.LayerNorm(shape.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        own, normed = self.self_attn, self.self_attn_layer_norm(hidden)
        query, keys, values = (own.split(part(normed)) for part in (own.q_proj, own.k_proj, own.v_proj))
        hidden = hidden + own.attend(query, keys, values, None, causal=False)
        return hidden + self.fc2(gelu(self.fc1(self.final_layer_norm(hidden))))


class WhisperEncoder(nn.Module):
    """Windows of the spectrogram to hidden states, one for each 20 ms."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        size = shape.hidden_size
        self.conv1 = nn.Conv1d(shape.num_mel_bins, size, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(size, size, kernel_size=3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(shape.positions, size)
        self.layers = nn.ModuleList(_EncoderLayer(shape) for _ in range(shape.encoder_layers))
        self.layer_norm = nn.LayerNorm(size)

    def forward(self, features: Tensor) -> Tensor:
        """
        Args:
            features: (B, num_mel_bins, 2 * positions), in the weights' dtype.

        Returns:
            (B, positions, hidden_size).
        """
        hidden = gelu(self.conv2(gelu(self.conv1(features)))).transpose(1, 2) + self.embed_positions.weight
        for layer in self.layers:
            hidden = layer(hidden)
        return self.layer_norm(hidden)


class _DecoderLayer(nn.Module):
    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        size = shape.hidden_size
        self.self_attn = _Projections(size, shape.decoder_heads)
        self.self_attn_layer_norm = nn.LayerNorm(size)
        self.encoder_attn = _Projections(size, shape.decoder_heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(size)
        self.fc1 = nn.Linear(size, shape.decoder_ffn)
        self.fc2 = nn.Linear(shape.decoder_ffn, size)
        self.final_layer_norm = nn.LayerNorm(size)


class WhisperDecoder(nn.Module):
    """Tokens to hidden states after the last norm; keys and values are in a ``DecoderCache``."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        size = shape.hidden_size
        self.embed_tokens = nn.Embedding(shape.vocab_size, size)
        self.embed_positions = nn.Embedding(shape.context_length, size)
        self.layers = nn.ModuleList(_DecoderLayer(shape) for _ in range(shape.decoder_layers))
        self.layer_norm = nn.LayerNorm(size)
        self._scale = math.sqrt(size) if shape.scale_embedding else 1.0

    def hear(self, heard: Tensor, cache: DecoderCache, slots: Tensor) -> None:
        """Stores the keys and values of what was heard, (B, positions, hidden_size), in ``slots`` (B,)."""
        for index, layer in enumerate(self._layers):
            cross = layer.encoder_attn
            cache.cross_keys[index, slots] = cross.split(cross.k_proj(heard))
            cache.cross_values[index, slots] = cross.split(cross.v_proj(heard))

    def prefill(
        self,
        tokens: Tensor,
        cache: DecoderCache,
        slots: Tensor,
        watch: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """The beginnings of texts, filled up at their ends to one length.

        What is computed for the filling is overwritten before it is read.

        Args:
            tokens: (B, n) int64, from position 0.
            slots: (B,) int64.
            watch: Called with a layer's index and what its look at the sound gets, (B, n, hidden_size).

        Returns:
            (B, n, hidden_size).
        """
        count = tokens.shape[1]
        hidden = self.embed_tokens(tokens) * self._scale + self.embed_positions.weight[:count]
        for index, layer in enumerate(self._layers):
            own, normed = layer.self_attn, layer.self_attn_layer_norm(hidden)
            query, keys, values = (own.split(part(normed)) for part in (own.q_proj, own.k_proj, own.v_proj))
            cache.keys[index, slots, :, :count] = keys
            cache.values[index, slots, :, :count] = values
            hidden = hidden + own.attend(query, keys, values, None, causal=True)
            if watch is not None:
                watch(index, hidden)
            hidden = self._rest(
                layer, hidden, cache.cross_keys[index, slots], cache.cross_values[index, slots]
            )
        return self.layer_norm(hidden)

    def attention(
        self, tokens: Tensor, cache: DecoderCache, slots: Tensor, heads: Sequence[tuple[int, int]]
    ) -> Tensor:
        """How much each token of whole texts looks at each position of what was heard.

        Args:
            tokens, slots: As those of ``prefill``.
            heads: Layers, and heads of their look at the sound.

        Returns:
            (B, len(heads), n, positions) float32.
        """
        layers = list(self._layers)
        found: dict[tuple[int, int], Tensor] = {}

        def watch(index: int, hidden: Tensor) -> None:
            chosen = [head for layer, head in heads if layer == index]
            if not chosen:
                return
            cross = layers[index].encoder_attn
            query = cross.split(cross.q_proj(layers[index].encoder_attn_layer_norm(hidden)))[:, chosen]
            scores = query @ cache.cross_keys[index, slots][:, chosen].transpose(-1, -2)
            weights = (scores * query.shape[-1] ** -0.5).float().softmax(dim=-1)
            found.update(zip([(index, head) for head in chosen], weights.unbind(1), strict=True))

        self.prefill(tokens, cache, slots, watch)
        return torch.stack([found[head] for head in heads], dim=1)

    def step(self, tokens: Tensor, places: Tensor, cache: DecoderCache, longest: int) -> Tensor:
        """One token of each of the first slots.

        Args:
            tokens: (n,) int64; the i-th is that of slot i.
            places: (n,) int64, their positions.
            longest: One more than the highest of them.

        Returns:
            (n, hidden_size).
        """
        count = len(tokens)
        rows = torch.arange(count, device=tokens.device)
        mask = (torch.arange(longest, device=tokens.device) <= places[:, None])[:, None, None]
        positions = self.embed_positions.weight[places.clamp(max=len(self.embed_positions.weight) - 1)]
        hidden = (self.embed_tokens(tokens) * self._scale + positions)[:, None]
        for index, layer in enumerate(self._layers):
            own, normed = layer.self_attn, layer.self_attn_layer_norm(hidden)
            query, key, value = (own.split(part(normed)) for part in (own.q_proj, own.k_proj, own.v_proj))
            keys, values = cache.keys[index], cache.values[index]
            keys[rows, :, places] = key[:, :, 0]
            values[rows, :, places] = value[:, :, 0]
            seen = (keys[:count, :, :longest], values[:count, :, :longest])
            hidden = hidden + own.attend(query, *seen, mask, causal=False)
            hidden = self._rest(
                layer, hidden, cache.cross_keys[index, :count], cache.cross_values[index, :count]
            )
        return self.layer_norm(hidden)[:, 0]

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., vocab_size) float32."""
        return linear(hidden, self.embed_tokens.weight).float()

    @property
    def _layers(self) -> Iterable[_DecoderLayer]:
        return cast(Iterable[_DecoderLayer], self.layers)

    @staticmethod
    def _rest(layer: _DecoderLayer, hidden: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What follows a layer's self-attention: a look at what was heard, and the perceptron."""
        cross = layer.encoder_attn
        query = cross.split(cross.q_proj(layer.encoder_attn_layer_norm(hidden)))
        hidden = hidden + cross.attend(query, keys, values, None, causal=False)
        return hidden + layer.fc2(gelu(layer.fc1(layer.final_layer_norm(hidden))))
