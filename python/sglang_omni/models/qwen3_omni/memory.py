"""What each stage of Qwen3-Omni takes of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sglang_omni.config.memory import MIB, MemoryDemand
from sglang_omni.config.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.models.memory import decoder_demand, dtype_of, weights_and_loading
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint

# On a GPU; a CPU's are in the factories.
GPU_TALKER_REQUESTS = 32
GPU_CODEC_FRAMES = 128
# The talker's prompts are short, and its workspace is better spent on the thinker's KV.
_TALKER_STEPS = (2048,)
# Frames that a request may ask for unless the checkpoint or the request says otherwise.
_FRAMES_PER_ANSWER = 4096
# cuDNN, cuBLAS and what an allocator keeps; and the captured graphs of the code predictor or the codec.
_LIBRARIES = 256 * MIB
_GRAPHS = 256 * MIB


def stage_demand(
    checkpoint: Qwen3OmniCheckpoint, stage: str, args: Mapping[str, Any], stored_item: float | None = None
) -> MemoryDemand | None:
    """The demand of one rank of a stage on a GPU; None for a stage that uses none.

    Args:
        checkpoint: The model.
        stage: The stage's name.
        args: What its factory gets.
        stored_item: If set, of a checkpoint that holds the weights of thinker and talker quantized to so many
            bytes a number.

    Raises:
        FileNotFoundError, ValueError: The checkpoint's weights or config cannot be read.
    """
    if stage in ("thinker", "talker"):
        return (thinker_demand if stage == "thinker" else talker_demand)(checkpoint, args, stored_item)
    demands = {
        "image_encoder": _image_encoder,
        "audio_encoder": _audio_encoder,
        "code2wav": _code2wav,
    }
    return demands[stage](checkpoint, args) if stage in demands else None


def thinker_demand(
    checkpoint: Qwen3OmniCheckpoint, args: Mapping[str, Any], stored_item: float | None = None
) -> MemoryDemand:
    """The thinker's. If there is a talker (``speech``), hidden states are kept beside the KV."""
    sizes = tensor_sizes(checkpoint.path)
    config = DecoderConfig.from_dict(checkpoint.thinker_config["text_config"])
    weights, loading = weights_and_loading(sizes, ("thinker.model.", "thinker.lm_head."), args, stored_item)
    hidden = config.hidden_size * _item(args) if args.get("speech") else 0
    return decoder_demand(config, args, weights, loading=loading, extra_token_bytes=hidden, weight=4)


def talker_demand(
    checkpoint: Qwen3OmniCheckpoint, args: Mapping[str, Any], stored_item: float | None = None
) -> MemoryDemand:
    """The talker's with its code predictor. The thinker's embeddings stay in the checkpoint's file."""
    sizes = tensor_sizes(checkpoint.path)
    config = DecoderConfig.from_dict(checkpoint.config["talker_config"]["text_config"])
    layers, loading = weights_and_loading(sizes, ("talker.model.layers.",), args, stored_item)
    whole = loaded_bytes(sizes, ("talker.",), dtype=dtype_of(args))
    others = whole - loaded_bytes(sizes, ("talker.model.layers.",), dtype=dtype_of(args))
    running = int(args.get("max_running_requests") or GPU_TALKER_REQUESTS)
    demand = decoder_demand(
        config,
        args,
        layers + others,
        loading=loading + others if loading else 0,
        max_running_requests=GPU_TALKER_REQUESTS,
        steps=_TALKER_STEPS,
        most_tokens=running * _FRAMES_PER_ANSWER,
    )
    return replace(demand, workspace=demand.workspace + _GRAPHS)


def _image_encoder(checkpoint: Qwen3OmniCheckpoint, args: Mapping[str, Any]) -> MemoryDemand:
    vision = checkpoint.thinker_config["vision_config"]
    patches = int(args.get("max_batch_patches") or 16_384)
    # The residual, the norm, q, k, v, their rotated copies and the attention's output; the MLP's inner rows.
    width = 8 * int(vision["hidden_size"]) + 2 * int(vision["intermediate_size"])
    return _encoder(checkpoint, args, "thinker.visual.", 3 * patches * width // 2, 512_000_000)


def _audio_encoder(checkpoint: Qwen3OmniCheckpoint, args: Mapping[str, Any]) -> MemoryDemand:
    audio = checkpoint.thinker_config["audio_config"]
    at_once = 2 * int(audio["n_window"]) * int(audio["conv_chunksize"])
    frames = min(int(args.get("max_batch_frames") or 30_000), at_once)
    # The first convolution halves frames and mels; its output, the activation's and the next one's quarter.
    elements = frames * int(audio["num_mel_bins"]) // 4 * int(audio["downsample_hidden_size"])
    return _encoder(checkpoint, args, "thinker.audio_tower.", 9 * elements // 4, 256_000_000)


def _encoder(
    checkpoint: Qwen3OmniCheckpoint, args: Mapping[str, Any], prefix: str, elements: int, cache_bytes: int
) -> MemoryDemand:
    cache = args.get("cache_bytes")
    return MemoryDemand(
        weights=loaded_bytes(tensor_sizes(checkpoint.path), (prefix,), dtype=dtype_of(args)),
        # The cached outputs stay on the GPU.
        workspace=_LIBRARIES + elements * _item(args) + (cache_bytes if cache is None else int(cache)),
    )


def _code2wav(checkpoint: Qwen3OmniCheckpoint, args: Mapping[str, Any]) -> MemoryDemand:
    codec = checkpoint.config["code2wav_config"]
    frames = max(int(args.get("max_batch_frames") or GPU_CODEC_FRAMES), int(args.get("chunk_size") or 25))
    length, channels, widest = 1, int(codec["decoder_dim"]), 0
    for rate in codec["upsampling_ratios"]:
        length *= int(rate)
    for rate in codec["upsample_rates"]:
        length, channels = length * int(rate), channels // 2
        widest = max(widest, length * channels)
    # Keys and values of earlier frames, of as many streams as first chunks are decoded at once: what graphs
    # read, and what they write.
    hidden = int(codec["hidden_size"])
    heads, key_heads = int(codec["num_attention_heads"]), int(codec["num_key_value_heads"])
    state = 2 * int(codec["num_hidden_layers"]) * hidden // heads * key_heads * int(codec["sliding_window"])
    streams = frames // int(args.get("first_chunk_size") or 2)
    # A residual unit holds its input, the activations' and convolutions' outputs.
    elements = 6 * frames * widest + 2 * streams * state
    return MemoryDemand(
        weights=loaded_bytes(tensor_sizes(checkpoint.path), ("code2wav.",), dtype=dtype_of(args)),
        workspace=_LIBRARIES + _GRAPHS + elements * _item(args),
    )


def _item(args: Mapping[str, Any]) -> int:
    return ITEM_BYTES[dtype_of(args)]
