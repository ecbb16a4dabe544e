"""Names, shapes and random values of the tensors of a tiny checkpoint, by their published names.

Values depend only on the seed and on the tensor's name. They are spread such that a greedy answer varies with
every part of its prompt, and that speech is neither silent nor clipped: with the usual initialization (0.02
throughout) answers would hardly depend on anything, and tests would miss errors.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Config = Mapping[str, Any]
# Places of the vision encoder's learned positions, 48 by 48; no published config says so.
_POSITIONS = 2304
# Answers are text: as in a trained model, tokens that only prompts have are out of reach.
_UNREACHABLE = 0.02
# Speech ends late rather than at once: transformers fails to decode speech without a frame.
_RARE = 0.7


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


def tensor_specs(config: Config, *, answer_ends: int, text_ids: int) -> Iterator[TensorSpec]:
    """All tensors of the model that ``config`` (of ``config.json``) describes.

    Args:
        answer_ends: The only special token in answers.
        text_ids: Ids below this one are text.
    """
    thinker = config["thinker_config"]
    yield from _audio_tower(thinker["audio_config"])
    yield from _visual(thinker["vision_config"])
    text = thinker["text_config"]
    vocab, hidden = text["vocab_size"], text["hidden_size"]
    yield TensorSpec("thinker.model.embed_tokens.weight", (vocab, hidden), 1.0)
    yield from _decoder("thinker.model", text)
    quiet = tuple(i for i in range(text_ids, vocab) if i != answer_ends)
    yield TensorSpec("thinker.lm_head.weight", (vocab, hidden), _gain(hidden, 2.0), 0.0, quiet, _UNREACHABLE)
    if config["enable_audio_output"]:
        yield from _talker(config["talker_config"])
        yield from _code2wav(config["code2wav_config"])


def _gain(fan_in: int, gain: float = 1.0) -> float:
    return gain / math.sqrt(fan_in)


def _linear(
    name: str, out: int, inputs: int, *, gain: float = 1.0, bias: bool = False
) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (out, inputs), _gain(inputs, gain))
    if bias:
        yield TensorSpec(f"{name}.bias", (out,), 0.1)


def _norm(name: str, size: int, *, bias: bool = False, mean: float = 1.0) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (size,), 0.2, mean)
    if bias:
        yield TensorSpec(f"{name}.bias", (size,), 0.1)


def _audio_tower(config: Config) -> Iterator[TensorSpec]:
    name, width, channels = "thinker.audio_tower", config["d_model"], config["downsample_hidden_size"]
    bins = config["num_mel_bins"]
    for i, inputs in enumerate((1, channels, channels), start=1):
        yield TensorSpec(f"{name}.conv2d{i}.weight", (channels, inputs, 3, 3), _gain(9 * inputs, 1.5))
        yield TensorSpec(f"{name}.conv2d{i}.bias", (channels,), 0.1)
        bins = (bins + 1) // 2
    yield from _linear(f"{name}.conv_out", width, channels * bins, gain=2.0)
    for i in range(config["encoder_layers"]):
        layer = f"{name}.layers.{i}"
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{layer}.self_attn.{projection}", width, width, bias=True)
        yield from _norm(f"{layer}.self_attn_layer_norm", width, bias=True)
        yield from _linear(f"{layer}.fc1", config["encoder_ffn_dim"], width, bias=True)
        yield from _linear(f"{layer}.fc2", width, config["encoder_ffn_dim"], bias=True)
        yield from _norm(f"{layer}.final_layer_norm", width, bias=True)
    yield from _norm(f"{name}.ln_post", width, bias=True)
    yield from _linear(f"{name}.proj1", width, width, gain=1.5, bias=True)
    yield from _linear(f"{name}.proj2", config["output_dim"], width, gain=1.5, bias=True)


def _visual(config: Config) -> Iterator[TensorSpec]:
    name, width = "thinker.visual", config["hidden_size"]
    patch, frames = config["patch_size"], config["temporal_patch_size"]
    inputs = config["in_channels"] * frames * patch * patch
    # Smaller weights, because pictures are smooth: a patch's pixels add up rather than cancel.
    yield TensorSpec(
        f"{name}.patch_embed.proj.weight",
        (width, config["in_channels"], frames, patch, patch),
        _gain(inputs, 0.7),
    )
    yield TensorSpec(f"{name}.patch_embed.proj.bias", (width,), 0.1)
    yield TensorSpec(f"{name}.pos_embed.weight", (_POSITIONS, width), 0.3)
    for i in range(config["depth"]):
        block = f"{name}.blocks.{i}"
        yield from _norm(f"{block}.norm1", width, bias=True)
        yield from _norm(f"{block}.norm2", width, bias=True)
        yield from _linear(f"{block}.attn.qkv", 3 * width, width, bias=True)
        yield from _linear(f"{block}.attn.proj", width, width, bias=True)
        yield from _linear(f"{block}.mlp.linear_fc1", config["intermediate_size"], width, bias=True)
        yield from _linear(f"{block}.mlp.linear_fc2", width, config["intermediate_size"], bias=True)
    merged = width * config["spatial_merge_size"] ** 2
    mergers = [(f"{name}.merger", width)]
    mergers += [(f"{name}.merger_list.{i}", merged) for i in range(len(config["deepstack_visual_indexes"]))]
    for merger, normed in mergers:
        yield from _norm(f"{merger}.ln_q", normed, bias=True)
        yield from _linear(f"{merger}.mlp.0", merged, merged, gain=1.5, bias=True)
        yield from _linear(f"{merger}.mlp.2", config["out_hidden_size"], merged, gain=1.5, bias=True)


def _decoder(name: str, config: Config) -> Iterator[TensorSpec]:
    """Layers and last norm of a Qwen3 decoder, dense or with experts."""
    width = config["hidden_size"]
    for i in range(config["num_hidden_layers"]):
        layer = f"{name}.layers.{i}"
        yield from _norm(f"{layer}.input_layernorm", width)
        yield from _attention(f"{layer}.self_attn", config)
        yield from _norm(f"{layer}.self_attn.q_norm", config["head_dim"], mean=1.2)
        yield from _norm(f"{layer}.self_attn.k_norm", config["head_dim"], mean=1.2)
        yield from _norm(f"{layer}.post_attention_layernorm", width)
        if "num_experts" not in config:
            yield from _mlp(f"{layer}.mlp", width, config["intermediate_size"])
            continue
        yield from _linear(f"{layer}.mlp.gate", config["num_experts"], width, gain=2.0)
        for expert in range(config["num_experts"]):
            yield from _mlp(f"{layer}.mlp.experts.{expert}", width, config["moe_intermediate_size"])
        if shared := config["shared_expert_intermediate_size"]:
            yield from _mlp(f"{layer}.mlp.shared_expert", width, shared)
            yield from _linear(f"{layer}.mlp.shared_expert_gate", 1, width)
    yield from _norm(f"{name}.norm", width)


def _attention(name: str, config: Config) -> Iterator[TensorSpec]:
    width = config["hidden_size"]
    head_dim = config.get("head_dim") or width // config["num_attention_heads"]
    queries, keys = head_dim * config["num_attention_heads"], head_dim * config["num_key_value_heads"]
    for projection, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield from _linear(f"{name}.{projection}", size, width)
    yield from _linear(f"{name}.o_proj", width, queries, gain=1.5)


def _mlp(name: str, width: int, intermediate: int) -> Iterator[TensorSpec]:
    yield from _linear(f"{name}.gate_proj", intermediate, width, gain=1.5)
    yield from _linear(f"{name}.up_proj", intermediate, width)
    yield from _linear(f"{name}.down_proj", width, intermediate, gain=1.5)


def _talker(config: Config) -> Iterator[TensorSpec]:
    text, predictor = config["text_config"], config["code_predictor_config"]
    width, vocab, codes = text["hidden_size"], text["vocab_size"], predictor["vocab_size"]
    for projection in ("text_projection", "hidden_projection"):
        intermediate = text["intermediate_size"]
        yield from _linear(
            f"talker.{projection}.linear_fc1",
            intermediate,
            config["thinker_hidden_size"],
            gain=1.5,
            bias=True,
        )
        yield from _linear(f"talker.{projection}.linear_fc2", width, intermediate, gain=1.5, bias=True)
    yield TensorSpec("talker.model.codec_embedding.weight", (vocab, width), 0.7)
    yield from _decoder("talker.model", text)
    end = (config["codec_eos_token_id"],)
    yield TensorSpec("talker.codec_head.weight", (vocab, width), _gain(width, 2.0), 0.0, end, _RARE)
    yield from _decoder("talker.code_predictor.model", predictor)
    for group in range(config["num_code_groups"] - 1):
        yield TensorSpec(f"talker.code_predictor.model.codec_embedding.{group}.weight", (codes, width), 0.7)
        yield from _linear(f"talker.code_predictor.lm_head.{group}", codes, width, gain=2.0)


def _code2wav(config: Config) -> Iterator[TensorSpec]:
    width = config["hidden_size"]
    yield TensorSpec(
        "code2wav.code_embedding.weight", (config["codebook_size"] * config["num_quantizers"], width), 1.0
    )
    for i in range(config["num_hidden_layers"]):
        layer = f"code2wav.pre_transformer.layers.{i}"
        yield from _norm(f"{layer}.input_layernorm", width)
        yield from _attention(f"{layer}.self_attn", config)
        yield from _norm(f"{layer}.post_attention_layernorm", width)
        yield from _mlp(f"{layer}.mlp", width, config["intermediate_size"])
        for part in ("self_attn", "mlp"):
            yield TensorSpec(f"{layer}.{part}_layer_scale.scale", (width,), 0.1, 0.5)
    yield from _norm("code2wav.pre_transformer.norm", width)
    for i, ratio in enumerate(config["upsampling_ratios"]):
        yield TensorSpec(f"code2wav.upsample.{i}.0.conv.weight", (width, width, ratio), _gain(width))
        yield TensorSpec(f"code2wav.upsample.{i}.0.conv.bias", (width,), 0.1)
        block = f"code2wav.upsample.{i}.1"
        yield TensorSpec(f"{block}.gamma", (width,), 0.1, 0.3)
        yield from _conv(f"{block}.dwconv.conv", width, 1, 7)
        yield from _norm(f"{block}.norm", width, bias=True)
        yield from _linear(f"{block}.pwconv1", 4 * width, width, bias=True)
        yield from _linear(f"{block}.pwconv2", width, 4 * width, bias=True)
    channels = config["decoder_dim"]
    yield from _conv("code2wav.decoder.0.conv", channels, width, 7)
    for i, rate in enumerate(config["upsample_rates"], start=1):
        yield from _snake(f"code2wav.decoder.{i}.block.0", channels)
        out = channels // 2
        yield TensorSpec(
            f"code2wav.decoder.{i}.block.1.conv.weight", (channels, out, 2 * rate), _gain(2 * channels, 0.7)
        )
        yield TensorSpec(f"code2wav.decoder.{i}.block.1.conv.bias", (out,), 0.1)
        channels = out
        for unit in range(2, 5):
            residual = f"code2wav.decoder.{i}.block.{unit}"
            yield from _snake(f"{residual}.act1", channels)
            yield from _conv(f"{residual}.conv1.conv", channels, channels, 7)
            yield from _snake(f"{residual}.act2", channels)
            yield from _conv(f"{residual}.conv2.conv", channels, channels, 1, gain=0.3)
    last = len(config["upsample_rates"]) + 1
    yield from _snake(f"code2wav.decoder.{last}", channels)
    yield TensorSpec(f"code2wav.decoder.{last + 1}.conv.weight", (1, channels, 7), _gain(7 * channels, 0.2))
    yield TensorSpec(f"code2wav.decoder.{last + 1}.conv.bias", (1,), 0.01)


def _conv(name: str, out: int, inputs: int, kernel: int, *, gain: float = 1.0) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (out, inputs, kernel), _gain(inputs * kernel, gain))
    yield TensorSpec(f"{name}.bias", (out,), 0.1)


def _snake(name: str, channels: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.alpha", (channels,), 0.2)
    yield TensorSpec(f"{name}.beta", (channels,), 0.2, 0.5)
