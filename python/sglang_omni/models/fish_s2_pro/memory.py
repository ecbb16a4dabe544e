"""What each stage of Fish Audio S2-Pro takes of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.models.decoder.memory import decoder_demand, dtype_of
from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint

GPU_REQUESTS = 32
# The KV pool on a CPU.
CPU_TOKENS = 32_768
GPU_CODEC_FRAMES = 128
_STEPS = (2048,)
# Of a speech, with the voice and what was spoken before.
_TOKENS_PER_REQUEST = 4096
# cuDNN, cuBLAS and what an allocator keeps; and the captured graphs of the fast decoder or the codec.
_LIBRARIES = 256 * MIB
_GRAPHS = 256 * MIB
# The codec's widest rows: 96 channels at the rate of the samples, 2,048 of a frame, in its decoder; 64 in its
# encoder. A residual unit holds its input, the activations' and convolutions' outputs.
_DECODER_FRAME = 6 * 96 * 2048
_ENCODER_FRAME = 6 * 64 * 2048
# What a stream keeps: keys and values of 8 layers, 127 steps of 1024 channels each, and ends of convolutions.
_STREAM = 2 * 8 * 127 * 1024 + 1_000_000


def stage_demand(model_path: str, stage: str, args: Mapping[str, Any]) -> MemoryDemand | None:
    """The demand of a stage on a GPU; None for a stage that uses none.

    Args:
        model_path: Directory of a checkpoint.
        stage: The stage's name.
        args: What its factory gets.

    Raises:
        FileNotFoundError, ValueError: The checkpoint's weights or config cannot be read.
    """
    match stage:
        case "dual_ar":
            return dual_ar_demand(FishS2Checkpoint.from_dir(model_path), args)
        case "codec":
            frames = int(args.get("max_batch_frames") or GPU_CODEC_FRAMES)
            streams = frames // int(args.get("first_chunk_size") or 2)
            return _codec(model_path, frames * _DECODER_FRAME + 2 * streams * _STREAM)
        case "voice_encoder":
            frames = int(args.get("max_batch_frames") or GPU_CODEC_FRAMES)
            return _codec(model_path, frames * _ENCODER_FRAME)
    return None


def dual_ar_demand(checkpoint: FishS2Checkpoint, args: Mapping[str, Any]) -> MemoryDemand:
    """Of both decoders; the text's embeddings are there twice, for the strategy and for the engine."""
    sizes = tensor_sizes(checkpoint.path)
    weights = loaded_bytes(sizes, dtype=dtype_of(args))
    table = checkpoint.slow.vocab_size * checkpoint.slow.hidden_size * ITEM_BYTES[dtype_of(args)]
    running = int(args.get("max_running_requests") or GPU_REQUESTS)
    demand = decoder_demand(
        checkpoint.slow,
        args,
        weights + table,
        max_running_requests=GPU_REQUESTS,
        steps=_STEPS,
        most_tokens=running * _TOKENS_PER_REQUEST,
        cpu_tokens=CPU_TOKENS,
    )
    return replace(demand, workspace=demand.workspace + _GRAPHS)


def _codec(model_path: str, elements: int) -> MemoryDemand:
    """Of one half of the codec; the file has both, in float32, which is computed in."""
    file = Path(model_path) / "codec.pth"
    if not file.is_file():
        raise FileNotFoundError(f"{model_path} lacks codec.pth, which holds the codec: download it again")
    workspace = _LIBRARIES + _GRAPHS + elements * ITEM_BYTES["float32"]
    return MemoryDemand(weights=file.stat().st_size, workspace=workspace)
