"""Names, shapes and random values of the tensors of a tiny checkpoint, by their published names.

Speech is neither silent nor clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_omni.models.tiny.tensors import (
    TensorSpec,
    linear,
    norm,
    qwen3_decoder,
    scaled_layers,
    spread,
    wave_decoder,
)

Config = Mapping[str, Any]
# Places of the vision encoder's learned positions, 48 by 48; no published config says so.
_POSITIONS = 2304
# Answers are text: as in a trained model, tokens that only prompts have are out of reach.
_UNREACHABLE = 0.02
# Speech ends late rather than at once: transformers fails to decode speech without a frame.
_RARE = 0.7


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
    yield from qwen3_decoder("thinker.model", text)
    quiet = tuple(i for i in range(text_ids, vocab) if i != answer_ends)
    yield TensorSpec("thinker.lm_head.weight", (vocab, hidden), spread(hidden, 2.0), 0.0, quiet, _UNREACHABLE)
    if config["enable_audio_output"]:
        yield from _talker(config["talker_config"])
        yield from _code2wav(config["code2wav_config"])


def _audio_tower(config: Config) -> Iterator[TensorSpec]:
    name, width, channels = "thinker.audio_tower", config["d_model"], config["downsample_hidden_size"]
    bins = config["num_mel_bins"]
    for i, inputs in enumerate((1, channels, channels), start=1):
        yield TensorSpec(f"{name}.conv2d{i}.weight", (channels, inputs, 3, 3), spread(9 * inputs, 1.5))
        yield TensorSpec(f"{name}.conv2d{i}.bias", (channels,), 0.1)
        bins = (bins + 1) // 2
    yield from linear(f"{name}.conv_out", width, channels * bins, gain=2.0)
    for i in range(config["encoder_layers"]):
        layer = f"{name}.layers.{i}"
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from linear(f"{layer}.self_attn.{projection}", width, width, bias=True)
        yield from norm(f"{layer}.self_attn_layer_norm", width, bias=True)
        yield from linear(f"{layer}.fc1", config["encoder_ffn_dim"], width, bias=True)
        yield from linear(f"{layer}.fc2", width, config["encoder_ffn_dim"], bias=True)
        yield from norm(f"{layer}.final_layer_norm", width, bias=True)
    yield from norm(f"{name}.ln_post", width, bias=True)
    yield from linear(f"{name}.proj1", width, width, gain=1.5, bias=True)
    yield from linear(f"{name}.proj2", config["output_dim"], width, gain=1.5, bias=True)


def _visual(config: Config) -> Iterator[TensorSpec]:
    name, width = "thinker.visual", config["hidden_size"]
    patch, frames = config["patch_size"], config["temporal_patch_size"]
    inputs = config["in_channels"] * frames * patch * patch
    # Smaller weights, because pictures are smooth: a patch's pixels add up rather than cancel.
    yield TensorSpec(
        f"{name}.patch_embed.proj.weight",
        (width, config["in_channels"], frames, patch, patch),
        spread(inputs, 0.7),
    )
    yield TensorSpec(f"{name}.patch_embed.proj.bias", (width,), 0.1)
    yield TensorSpec(f"{name}.pos_embed.weight", (_POSITIONS, width), 0.3)
    for i in range(config["depth"]):
        block = f"{name}.blocks.{i}"
        yield from norm(f"{block}.norm1", width, bias=True)
        yield from norm(f"{block}.norm2", width, bias=True)
        yield from linear(f"{block}.attn.qkv", 3 * width, width, bias=True)
        yield from linear(f"{block}.attn.proj", width, width, bias=True)
        yield from linear(f"{block}.mlp.linear_fc1", config["intermediate_size"], width, bias=True)
        yield from linear(f"{block}.mlp.linear_fc2", width, config["intermediate_size"], bias=True)
    merged = width * config["spatial_merge_size"] ** 2
    mergers = [(f"{name}.merger", width)]
    mergers += [(f"{name}.merger_list.{i}", merged) for i in range(len(config["deepstack_visual_indexes"]))]
    for merger, normed in mergers:
        yield from norm(f"{merger}.ln_q", normed, bias=True)
        yield from linear(f"{merger}.mlp.0", merged, merged, gain=1.5, bias=True)
        yield from linear(f"{merger}.mlp.2", config["out_hidden_size"], merged, gain=1.5, bias=True)


def _talker(config: Config) -> Iterator[TensorSpec]:
    text, predictor = config["text_config"], config["code_predictor_config"]
    width, vocab, codes = text["hidden_size"], text["vocab_size"], predictor["vocab_size"]
    for projection in ("text_projection", "hidden_projection"):
        intermediate = text["intermediate_size"]
        yield from linear(
            f"talker.{projection}.linear_fc1",
            intermediate,
            config["thinker_hidden_size"],
            gain=1.5,
            bias=True,
        )
        yield from linear(f"talker.{projection}.linear_fc2", width, intermediate, gain=1.5, bias=True)
    yield TensorSpec("talker.model.codec_embedding.weight", (vocab, width), 0.7)
    yield from qwen3_decoder("talker.model", text)
    end = (config["codec_eos_token_id"],)
    yield TensorSpec("talker.codec_head.weight", (vocab, width), spread(width, 2.0), 0.0, end, _RARE)
    yield from qwen3_decoder("talker.code_predictor.model", predictor)
    for group in range(config["num_code_groups"] - 1):
        yield TensorSpec(f"talker.code_predictor.model.codec_embedding.{group}.weight", (codes, width), 0.7)
        yield from linear(f"talker.code_predictor.lm_head.{group}", codes, width, gain=2.0)


def _code2wav(config: Config) -> Iterator[TensorSpec]:
    width = config["hidden_size"]
    yield TensorSpec(
        "code2wav.code_embedding.weight", (config["codebook_size"] * config["num_quantizers"], width), 1.0
    )
    yield from scaled_layers("code2wav.pre_transformer", config)
    yield from wave_decoder("code2wav", width, config)
