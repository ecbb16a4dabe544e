"""Voxtral Realtime's audio encoder, of which every frame is computed once: a stream of mel frames to rows.

transformers' module is ``VoxtralRealtimeEncoder``, with ``VoxtralRealtimeMultiModalProjector``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv1d, gelu, linear

from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.norm import RMSNorm
from sglang_omni.models.codecs.streamed import StreamedNetwork, StreamMemory
from sglang_omni.models.codecs.window_transformer import WindowLayer, WindowTransformer, as_neighbours
from sglang_omni.models.voxtral_realtime.components.checkpoint import VoxtralRealtimeCheckpoint

TOWER, PROJECTOR = "audio_tower.", "multi_modal_projector."


class _Convolution(NamedTuple):
    weight: Tensor
    bias: Tensor


class _Projector(NamedTuple):
    first: Tensor
    second: Tensor


class VoxtralEncoder(StreamedNetwork):
    """From mel frames (n, bins, 8 * m) to rows (n, m, hidden size of the decoder).

    Two convolutions, of which the second halves the frames, are followed by a transformer with a window, and
    four of its steps make a row.

    Args:
        device: Of the weights.

    Raises:
        FileNotFoundError, ValueError: A file or tensor is missing, misshapen or unknown.
    """

    def __init__(self, checkpoint: VoxtralRealtimeCheckpoint, dtype: torch.dtype, device: str) -> None:
        config, factor = checkpoint.audio, checkpoint.factor
        hidden_size = checkpoint.text.hidden_size
        weights = Checkpoint(checkpoint.path, dtype, TOWER, device=device)
        size, bins = int(config["hidden_size"]), int(config["num_mel_bins"])
        self._factor = factor
        self._convolutions = [
            _Convolution(
                weights.take(f"{TOWER}embedder.conv{number}.weight", (size, channels, 3)),
                weights.take(f"{TOWER}embedder.conv{number}.bias", (size,)),
            )
            for number, channels in ((1, bins), (2, size))
        ]
        eps, window = float(config["rms_norm_eps"]), int(config["sliding_window"])
        self._transformer = WindowTransformer(
            [_layer(weights, config, f"{TOWER}layers.{n}.") for n in range(int(config["num_hidden_layers"]))],
            RMSNorm.of(weights.take(f"{TOWER}norm.weight", (size,)), eps),
            window=window,
            head_dim=int(config["head_dim"]),
            rope_base=float(config["rope_parameters"]["rope_theta"]),
            table_dtype=dtype,
        )
        weights.finish()
        weights = Checkpoint(checkpoint.path, dtype, PROJECTOR, device=device)
        self._projector = _Projector(
            weights.take(f"{PROJECTOR}linear_1.weight", (hidden_size, factor * size)),
            weights.take(f"{PROJECTOR}linear_2.weight", (hidden_size, hidden_size)),
        )
        weights.finish()
        probe = torch.zeros(1, bins, 2 * factor, dtype=dtype, device=self._projector.first.device)
        super().__init__("the audio encoder", probe)

    @property
    def dtype(self) -> torch.dtype:
        return self._projector.first.dtype

    def run(self, inputs: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        first, second = self._convolutions
        frames = gelu(conv1d(memory.extend(inputs, 2), *first))
        frames = gelu(conv1d(memory.extend(frames, 1), *second, stride=2))
        steps = self._transformer(frames.transpose(1, 2), positions * self._factor, memory)
        rows = steps.unflatten(1, (-1, self._factor)).flatten(2)
        return linear(gelu(linear(rows, self._projector.first)), self._projector.second)


def _layer(weights: Checkpoint, config: Mapping[str, Any], prefix: str) -> WindowLayer:
    size, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    head_dim, eps = int(config["head_dim"]), float(config["rms_norm_eps"])
    width = int(config["num_attention_heads"]) * head_dim

    def take(name: str, *shape: int) -> Tensor:
        return weights.take(prefix + name, shape)

    def norm(name: str) -> RMSNorm:
        return RMSNorm.of(take(f"{name}.weight", size), eps)

    queries, keys, values = (take(f"self_attn.{name}_proj.weight", width, size) for name in "qkv")
    of_queries, of_values = (take(f"self_attn.{name}_proj.bias", width) for name in "qv")
    output_bias = take("self_attn.o_proj.bias", size)
    ones = torch.ones_like(output_bias)
    return WindowLayer(
        attention_norm=norm("self_attn_layer_norm"),
        qkv=torch.cat((as_neighbours(queries, head_dim), as_neighbours(keys, head_dim), values)),
        output=take("self_attn.o_proj.weight", size, width),
        attention_scale=ones,
        mlp_norm=norm("final_layer_norm"),
        gate=take("mlp.gate_proj.weight", inner, size),
        up=take("mlp.up_proj.weight", inner, size),
        down=take("mlp.down_proj.weight", size, inner),
        mlp_scale=ones,
        # Keys have none.
        qkv_bias=torch.cat((as_neighbours(of_queries, head_dim), torch.zeros_like(of_values), of_values)),
        output_bias=output_bias,
        down_bias=take("mlp.down_proj.bias", size),
    )
