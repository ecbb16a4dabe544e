"""What each stage of Qwen2.5-Omni takes of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.weights import loaded_bytes, tensor_sizes
from sglang_omni.models.omni.memory import LIBRARIES, StageDemands
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.shapes import talker_config, thinker_config


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


stage_demand = StageDemands(
    thinker_config,
    talker_config,
    inner_rows=3,
    audio_elements=_audio_elements,
    code2wav=_code2wav,
).of
