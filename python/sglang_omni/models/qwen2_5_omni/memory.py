"""What each stage of Qwen2.5-Omni takes of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.config.memory import MIB, MemoryDemand
from sglang_omni.config.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.models.memory import decoder_demand, dtype_of, weights_and_loading
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.shapes import talker_config, thinker_config

# On a GPU; a CPU's are in the factories.
GPU_TALKER_REQUESTS = 32
# The talker's prompts are short, and its workspace is better spent on the thinker's KV.
_TALKER_STEPS = (2048,)
# Codes that a request may ask for unless the checkpoint or the request says otherwise.
_CODES_PER_ANSWER = 4096
# cuDNN, cuBLAS and what an allocator keeps.
_LIBRARIES = 256 * MIB


def stage_demand(
    checkpoint: Qwen25OmniCheckpoint, stage: str, args: Mapping[str, Any], stored_item: float | None = None
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
    checkpoint: Qwen25OmniCheckpoint, args: Mapping[str, Any], stored_item: float | None = None
) -> MemoryDemand:
    """The thinker's. If there is a talker (``speech``), hidden states are kept beside the KV."""
    sizes = tensor_sizes(checkpoint.path)
    config = thinker_config(checkpoint)
    weights, loading = weights_and_loading(sizes, ("thinker.model.", "thinker.lm_head."), args, stored_item)
    hidden = config.hidden_size * _item(args) if args.get("speech") else 0
    return decoder_demand(config, args, weights, loading=loading, extra_token_bytes=hidden, weight=4)


def talker_demand(
    checkpoint: Qwen25OmniCheckpoint, args: Mapping[str, Any], stored_item: float | None = None
) -> MemoryDemand:
    """The talker's. The thinker's embeddings stay in the checkpoint's file."""
    sizes = tensor_sizes(checkpoint.path)
    config = talker_config(checkpoint)
    layers, loading = weights_and_loading(sizes, ("talker.model.layers.",), args, stored_item)
    whole = loaded_bytes(sizes, ("talker.",), dtype=dtype_of(args))
    others = whole - loaded_bytes(sizes, ("talker.model.layers.",), dtype=dtype_of(args))
    running = int(args.get("max_running_requests") or GPU_TALKER_REQUESTS)
    return decoder_demand(
        config,
        args,
        layers + others,
        loading=loading + others if loading else 0,
        max_running_requests=GPU_TALKER_REQUESTS,
        steps=_TALKER_STEPS,
        most_tokens=running * _CODES_PER_ANSWER,
    )


def _image_encoder(checkpoint: Qwen25OmniCheckpoint, args: Mapping[str, Any]) -> MemoryDemand:
    vision = checkpoint.thinker_config["vision_config"]
    patches = int(args.get("max_batch_patches") or 16_384)
    # The residual, the norm, q, k, v, their rotated copies and the attention's output; the MLP's inner rows.
    width = 8 * int(vision["hidden_size"]) + 3 * int(vision["intermediate_size"])
    return _encoder(checkpoint, args, "thinker.visual.", 3 * patches * width // 2, 512_000_000)


def _audio_encoder(checkpoint: Qwen25OmniCheckpoint, args: Mapping[str, Any]) -> MemoryDemand:
    audio = checkpoint.thinker_config["audio_config"]
    frames = int(args.get("max_batch_frames") or 30_000)
    # The first convolution keeps the frames: its output and the activation's; then half of them, in layers.
    width = 3 * int(audio["d_model"]) + int(audio["encoder_ffn_dim"])
    return _encoder(checkpoint, args, "thinker.audio_tower.", 3 * frames * width // 2, 256_000_000)


def _encoder(
    checkpoint: Qwen25OmniCheckpoint, args: Mapping[str, Any], prefix: str, elements: int, cache_bytes: int
) -> MemoryDemand:
    cache = args.get("cache_bytes")
    return MemoryDemand(
        weights=loaded_bytes(tensor_sizes(checkpoint.path), (prefix,), dtype=dtype_of(args)),
        # The cached outputs stay on the GPU.
        workspace=_LIBRARIES + elements * _item(args) + (cache_bytes if cache is None else int(cache)),
    )


def _code2wav(checkpoint: Qwen25OmniCheckpoint, args: Mapping[str, Any]) -> MemoryDemand:
    """Of a chunk's batch, in float32. A request that asks for the reference's way may need more."""
    dit, vocoder = checkpoint.dit, checkpoint.config["token2wav_config"]["bigvgan_config"]
    frames = int(args.get("max_batch_blocks") or 24) * int(dit.get("block_size", 24))
    # With and without the condition; the modulations, the branch, q, k, v and the inner rows.
    width = 2 * (14 + 2 * int(dit.get("ff_mult", 2))) * int(dit.get("hidden_size", 1024))
    length, channels, widest = 1, int(vocoder.get("upsample_initial_channel", 1536)), 0
    for rate in vocoder.get("upsample_rates", (5, 3, 2, 2, 2, 2)):
        length, channels = length * int(rate), channels // 2
        widest = max(widest, length * channels)
    # An activation computes at twice the rate; a residual block holds its input and the sum of the others.
    elements = frames * (width + 10 * widest)
    return MemoryDemand(
        weights=loaded_bytes(tensor_sizes(checkpoint.path), ("token2wav.",), dtype="float32"),
        workspace=_LIBRARIES + 4 * elements,
    )


def _item(args: Mapping[str, Any]) -> int:
    return ITEM_BYTES[dtype_of(args)]
