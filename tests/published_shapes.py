"""Checkpoints with the shapes of published ones: every tensor's name, shape and place, and no values.

The files are sparse: they have the length of the published weights, and take a few megabytes of a disk.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from sglang_omni.published import PublishedModel, published_model
from sglang_omni.testing.outlines import write_safetensors

_SHARDS = 5
_QUANTIZED = re.compile(r"(thinker\.|talker\.)?model\.layers\..*_proj\.weight$")

# By the names of docs/gpu.md.
TEXT_MODELS = {
    "Llama-3.1-8B": "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
}


def write_qwen3_omni(directory: Path, *, fp8: bool = False) -> Path:
    """Writes Qwen3-Omni-30B-A3B-Instruct; with ``fp8``, linear weights of its decoders take a byte each."""
    return _write(directory, published_model("qwen3_omni"), fp8=fp8)


def write_text_model(directory: Path, name: str, *, fp8: bool = False) -> Path:
    """Writes one of ``TEXT_MODELS``."""
    return _write(directory, published_model("text", TEXT_MODELS[name]), fp8=fp8)


def _write(directory: Path, model: PublishedModel, *, fp8: bool) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config, tensors = model.config(), list(model.stored_tensors())
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8"}
        tensors = [
            tensor._replace(dtype="F8_E4M3") if _QUANTIZED.match(tensor.name) else tensor
            for tensor in tensors
        ]
    weight_map = {}
    for shard in range(_SHARDS):
        file = f"model-{shard}.safetensors"
        write_safetensors(directory / file, tensors[shard::_SHARDS])
        weight_map |= {tensor.name: file for tensor in tensors[shard::_SHARDS]}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory
