"""Names, shapes and random values of the parts that several families' checkpoints have.

Values depend only on the seed and on the tensor's name. They are spread such that what a model answers varies
with every part of its prompt: with the usual initialization (0.02 throughout) answers would hardly depend on
anything, and tests would miss errors.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_Config = Mapping[str, Any]


class TensorSpec(NamedTuple):
    """One tensor: normal values times ``std`` around ``mean``; ``quiet_rows`` are multiplied by ``quiet``."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0
    quiet_rows: tuple[int, ...] = ()
    quiet: float = 1.0


def make_tensor(spec: TensorSpec, seed: int) -> NDArray[np.float32]:
    """The values of one tensor, float32."""
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(spec.name.encode())]))
    values = generator.standard_normal(spec.shape, dtype=np.float32)
    values *= np.float32(spec.std)
    values += np.float32(spec.mean)
    values[list(spec.quiet_rows)] *= np.float32(spec.quiet)
    return values


def spread(fan_in: int, gain: float = 1.0) -> float:
    """The spread of weights by which so many inputs of size 1 give outputs of size ``gain``."""
    return gain / math.sqrt(fan_in)


def linear(
    name: str, out: int, inputs: int, *, gain: float = 1.0, bias: bool = False
) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (out, inputs), spread(inputs, gain))
    if bias:
        yield TensorSpec(f"{name}.bias", (out,), 0.1)


def norm(name: str, size: int, *, bias: bool = False, mean: float = 1.0) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (size,), 0.2, mean)
    if bias:
        yield TensorSpec(f"{name}.bias", (size,), 0.1)


def conv(
    name: str, out: int, inputs: int, kernel: int, *, gain: float = 1.0, bias: bool = True
) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (out, inputs, kernel), spread(inputs * kernel, gain))
    if bias:
        yield TensorSpec(f"{name}.bias", (out,), 0.1)


def attention(name: str, config: _Config) -> Iterator[TensorSpec]:
    """The projections of grouped-query attention, without biases."""
    width = config["hidden_size"]
    head_dim = config.get("head_dim") or width // config["num_attention_heads"]
    queries, keys = head_dim * config["num_attention_heads"], head_dim * config["num_key_value_heads"]
    for projection, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield from linear(f"{name}.{projection}", size, width)
    yield from linear(f"{name}.o_proj", width, queries, gain=1.5)


def mlp(name: str, width: int, intermediate: int) -> Iterator[TensorSpec]:
    """A gated one."""
    yield from linear(f"{name}.gate_proj", intermediate, width, gain=1.5)
    yield from linear(f"{name}.up_proj", intermediate, width)
    yield from linear(f"{name}.down_proj", width, intermediate, gain=1.5)


def qwen3_decoder(name: str, config: _Config) -> Iterator[TensorSpec]:
    """Layers and last norm of a Qwen3 decoder, dense or with experts."""
    width = config["hidden_size"]
    for i in range(config["num_hidden_layers"]):
        layer = f"{name}.layers.{i}"
        yield from norm(f"{layer}.input_layernorm", width)
        yield from attention(f"{layer}.self_attn", config)
        yield from norm(f"{layer}.self_attn.q_norm", config["head_dim"], mean=1.2)
        yield from norm(f"{layer}.self_attn.k_norm", config["head_dim"], mean=1.2)
        yield from norm(f"{layer}.post_attention_layernorm", width)
        if "num_experts" not in config:
            yield from mlp(f"{layer}.mlp", width, config["intermediate_size"])
            continue
        yield from linear(f"{layer}.mlp.gate", config["num_experts"], width, gain=2.0)
        for expert in range(config["num_experts"]):
            yield from mlp(f"{layer}.mlp.experts.{expert}", width, config["moe_intermediate_size"])
        if shared := config["shared_expert_intermediate_size"]:
            yield from mlp(f"{layer}.mlp.shared_expert", width, shared)
            yield from linear(f"{layer}.mlp.shared_expert_gate", 1, width)
    yield from norm(f"{name}.norm", width)


def scaled_layers(name: str, config: _Config) -> Iterator[TensorSpec]:
    """Layers and last norm of the transformer in a decoder of sound, whose branches are scaled."""
    width = config["hidden_size"]
    for i in range(config["num_hidden_layers"]):
        layer = f"{name}.layers.{i}"
        yield from norm(f"{layer}.input_layernorm", width)
        yield from attention(f"{layer}.self_attn", config)
        yield from norm(f"{layer}.post_attention_layernorm", width)
        yield from mlp(f"{layer}.mlp", width, config["intermediate_size"])
        for part in ("self_attn", "mlp"):
            yield TensorSpec(f"{layer}.{part}_layer_scale.scale", (width,), 0.1, 0.5)
    yield from norm(f"{name}.norm", width)


def wave_decoder(name: str, width: int, config: _Config) -> Iterator[TensorSpec]:
    """Rows to samples: ``name.upsample`` and ``name.decoder`` of a decoder of sound.

    Args:
        width: Channels of the rows.
    """
    for i, ratio in enumerate(config["upsampling_ratios"]):
        yield TensorSpec(f"{name}.upsample.{i}.0.conv.weight", (width, width, ratio), spread(width))
        yield TensorSpec(f"{name}.upsample.{i}.0.conv.bias", (width,), 0.1)
        block = f"{name}.upsample.{i}.1"
        yield TensorSpec(f"{block}.gamma", (width,), 0.1, 0.3)
        yield from conv(f"{block}.dwconv.conv", width, 1, 7)
        yield from norm(f"{block}.norm", width, bias=True)
        yield from linear(f"{block}.pwconv1", 4 * width, width, bias=True)
        yield from linear(f"{block}.pwconv2", width, 4 * width, bias=True)
    channels = config["decoder_dim"]
    yield from conv(f"{name}.decoder.0.conv", channels, width, 7)
    for i, rate in enumerate(config["upsample_rates"], start=1):
        block = f"{name}.decoder.{i}.block"
        yield from _snake(f"{block}.0", channels)
        out = channels // 2
        yield TensorSpec(f"{block}.1.conv.weight", (channels, out, 2 * rate), spread(2 * channels, 0.7))
        yield TensorSpec(f"{block}.1.conv.bias", (out,), 0.1)
        channels = out
        for unit in range(2, 5):
            residual = f"{block}.{unit}"
            yield from _snake(f"{residual}.act1", channels)
            yield from conv(f"{residual}.conv1.conv", channels, channels, 7)
            yield from _snake(f"{residual}.act2", channels)
            yield from conv(f"{residual}.conv2.conv", channels, channels, 1, gain=0.3)
    last = len(config["upsample_rates"]) + 1
    yield from _snake(f"{name}.decoder.{last}", channels)
    yield TensorSpec(f"{name}.decoder.{last + 1}.conv.weight", (1, channels, 7), spread(7 * channels, 0.2))
    yield TensorSpec(f"{name}.decoder.{last + 1}.conv.bias", (1,), 0.01)


def _snake(name: str, channels: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.alpha", (channels,), 0.2)
    yield TensorSpec(f"{name}.beta", (channels,), 0.2, 0.5)
