"""What each stage of Qwen2.5-Omni takes of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.weights import loaded_bytes, tensor_sizes
from sglang_omni.models.multimodal.memory import (
    LIBRARIES,
    audio_encoder_demand,
    image_encoder_demand,
    talker_demand,
    thinker_demand,
)
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.shapes import talker_config, thinker_config

GPU_TALKER_REQUESTS = 32


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
    match stage:
        case "thinker":
            return thinker_demand(checkpoint, thinker_config(checkpoint), args, stored_item)
        case "talker":
            config = talker_config(checkpoint)
            return talker_demand(checkpoint, config, args, stored_item, GPU_TALKER_REQUESTS)
        case "image_encoder":
            return image_encoder_demand(checkpoint, args, inner_rows=3)
        case "audio_encoder":
            return audio_encoder_demand(checkpoint, args, _audio_elements(checkpoint, args))
        case "code2wav":
            return _code2wav(checkpoint, args)
        case _:
            return None


def _audio_elements(checkpoint: Qwen25OmniCheckpoint, args: Mapping[str, Any]) -> int:
    audio = checkpoint.thinker_config["audio_config"]
    frames = int(args.get("max_batch_frames") or 30_000)
    # The first convolution keeps the frames: its output and the activation's; then half of them, in layers.
    width = 3 * int(audio["d_model"]) + int(audio["encoder_ffn_dim"])
    return 3 * frames * width // 2


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
        workspace=LIBRARIES + 4 * elements,
    )
