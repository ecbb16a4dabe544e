"""What the codec of Higgs Audio v2 takes of a GPU. Estimates are rounded up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.models.higgs_audio_v2.codec_place import codec_dir
from sglang_omni.preprocessing.text import read_json

_LIBRARIES = 256 * MIB
# Outputs of convolutions that exist at the same time, at the rate of samples.
_LAYERS = 6
# Of a window, on both sides of its new frames.
_CONTEXT = 32
_DECODER = ("acoustic_decoder.", "fc2.", "quantizer.")


def codec_demand(model_path: str | Path, stage: str, args: Mapping[str, Any]) -> MemoryDemand | None:
    """The demand of the stages reference and code2wav; None for one that uses no GPU.

    Args:
        args: What the stage's factory gets.

    Raises:
        FileNotFoundError, ValueError: The checkpoint cannot be read.
    """
    if stage not in ("reference", "code2wav"):
        return None
    path = codec_dir(model_path, args.get("codec_path"))
    codec = read_json(path / "config.json")["acoustic_model_config"]
    dtype = "float32" if args.get("dtype") in (None, "auto") else str(args["dtype"])
    sizes = tensor_sizes(path)
    if stage == "reference":
        used = [size.name for size in sizes if not size.name.startswith(("acoustic_decoder.", "decoder_"))]
        samples, channels = int(args.get("max_batch_samples") or 720_000), int(codec["encoder_hidden_size"])
    else:
        used = [size.name for size in sizes if size.name.startswith(_DECODER)]
        ratios = codec["upsampling_ratios"]
        samples = (int(args.get("chunk_size") or 25) + 2 * _CONTEXT) * math.prod(ratios)
        channels = int(codec["decoder_hidden_size"]) // 2 ** len(ratios)
    return MemoryDemand(
        weights=loaded_bytes(sizes, used, dtype=dtype),
        workspace=_LIBRARIES + _LAYERS * samples * channels * ITEM_BYTES[dtype],
    )
