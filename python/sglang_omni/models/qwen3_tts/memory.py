"""What the codec's halves take of a GPU. Estimates are rounded up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.models.qwen3_tts.components.codec_config import CodecConfig

_GRAPHS = 256 * MIB
_LIBRARIES = 256 * MIB
# Outputs of convolutions that exist at the same time, at the rate of samples.
_LAYERS = 6


def codec_demand(model_path: str | Path, stage: str, args: Mapping[str, Any]) -> MemoryDemand | None:
    """The demand of the stages reference and code2wav; None for one that does not use the codec.

    Args:
        model_path: Directory of the checkpoint.
        stage: The stage's name.
        args: What its factory gets.

    Raises:
        FileNotFoundError, ValueError: The checkpoint cannot be read.
    """
    if stage not in ("reference", "code2wav"):
        return None
    config = CodecConfig.from_dir(model_path)
    dtype = "float32" if args.get("dtype") in (None, "auto") else str(args["dtype"])
    sizes = tensor_sizes(config.path)
    if stage == "reference":
        weights = loaded_bytes(sizes, ("encoder.",), dtype=dtype)
        weights += loaded_bytes(tensor_sizes(model_path), ("speaker_encoder.",), dtype=dtype)
        samples = int(args.get("max_batch_samples") or 1_440_000)
        channels, kept = int(config.encoder.get("num_filters", 64)), 0
    else:
        weights = loaded_bytes(sizes, ("decoder.",), dtype=dtype)
        decoder = config.decoder
        frames = max(int(args.get("max_batch_frames") or 64), int(args.get("chunk_size") or 25))
        samples = frames * config.frame_samples
        channels = decoder.decoder_dim // 2 ** len(decoder.upsample_rates)
        # Keys and values of as many streams as first chunks are decoded at once: what graphs read and write.
        width = 2 * decoder.num_hidden_layers * decoder.num_attention_heads * decoder.head_dim
        kept = 2 * width * decoder.sliding_window * (frames // int(args.get("first_chunk_size") or 2))
    return MemoryDemand(
        weights=weights,
        workspace=_LIBRARIES + _GRAPHS + (_LAYERS * samples * channels + kept) * ITEM_BYTES[dtype],
    )
