"""What the stages of speech that is made frame by frame take of a GPU. Estimates are rounded up."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.models.decoder.memory import decoder_demand, dtype_of

# Texts spoken at the same time.
GPU_REQUESTS = 16
# The KV pool on a CPU.
CPU_TOKENS = 32_768
_CODEC = "codec_model."
# Of the decoder of a frame, or of the codec.
_GRAPHS = 256 * MIB
_LIBRARIES = 256 * MIB
# Outputs of convolutions that exist at the same time, at the rate of samples.
_LAYERS = 6


def speech_demand(
    model_path: str | Path, decoder: DecoderConfig, stage: str, args: Mapping[str, Any]
) -> MemoryDemand | None:
    """The demand of a stage; None for one that uses no GPU.

    Args:
        model_path: A checkpoint with a Mimi in it.
        decoder: Its decoder over time.
        stage: The stage's name.
        args: What its factory gets.

    Raises:
        FileNotFoundError, ValueError: The checkpoint cannot be read.
    """
    if stage == "speak":
        return speak_demand(model_path, decoder, args)
    if stage in ("reference", "code2wav"):
        return _codec_demand(Path(model_path), stage, args)
    return None


def speak_demand(model_path: str | Path, decoder: DecoderConfig, args: Mapping[str, Any]) -> MemoryDemand:
    """The demand of both decoders; arguments and errors as for ``speech_demand``."""
    sizes = tensor_sizes(model_path)
    others = [size.name for size in sizes if not size.name.startswith(_CODEC)]
    weights = loaded_bytes(sizes, others, dtype=dtype_of(args))
    demand = decoder_demand(
        decoder, args, weights, max_running_requests=GPU_REQUESTS, steps=(512,), cpu_tokens=CPU_TOKENS
    )
    return replace(demand, workspace=demand.workspace + _GRAPHS)


def _codec_demand(path: Path, stage: str, args: Mapping[str, Any]) -> MemoryDemand:
    codec = json.loads((path / "config.json").read_text(encoding="utf-8"))["codec_config"]
    dtype = "float32" if args.get("dtype") in (None, "auto") else str(args["dtype"])
    filters, kept = int(codec.get("num_filters", 64)), 0
    if stage == "reference":
        samples = int(args.get("max_batch_samples") or 1_440_000)
    else:
        frames = max(int(args.get("max_batch_frames") or 64), int(args.get("chunk_size") or 25))
        samples = frames * 2 * math.prod(codec.get("upsampling_ratios") or (8, 6, 5, 4))
        # Keys and values of as many streams as first chunks are decoded at once: what graphs read and write.
        width = 2 * int(codec["num_hidden_layers"]) * int(codec["hidden_size"]) * int(codec["sliding_window"])
        kept = 2 * width * (frames // int(args.get("first_chunk_size") or 2))
    return MemoryDemand(
        weights=loaded_bytes(tensor_sizes(path), (_CODEC,), dtype=dtype),
        workspace=_LIBRARIES + _GRAPHS + (_LAYERS * samples * filters + kept) * ITEM_BYTES[dtype],
    )
