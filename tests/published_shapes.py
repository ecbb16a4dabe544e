"""Checkpoints with the shapes of published ones: every tensor's name, shape and place, and no values.

The files are sparse: they have the length of the published weights, and take a few megabytes of a disk.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_omni.models.qwen3_omni.tiny_checkpoint.weights import tensor_specs
from sglang_omni.published import published_model

_SHARDS = 5
_ITEMS = {"BF16": 2, "F8_E4M3": 1}
_QUANTIZED = re.compile(r"(thinker\.|talker\.)?model\.layers\..*_proj\.weight$")

# By the names of docs/gpu.md.
TEXT_MODELS = {
    "Llama-3.1-8B": "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
}


def write_qwen3_omni(directory: Path, *, fp8: bool = False) -> Path:
    """Writes Qwen3-Omni-30B-A3B-Instruct; with ``fp8``, linear weights of its decoders take a byte each."""
    config = published_model("qwen3_omni").config()
    specs = tensor_specs(config, answer_ends=0, text_ids=0)
    return _write(directory, config, ((spec.name, spec.shape) for spec in specs), fp8=fp8)


def write_text_model(directory: Path, name: str, *, fp8: bool = False) -> Path:
    """Writes one of ``TEXT_MODELS``."""
    model = published_model("text", TEXT_MODELS[name])
    config = model.config()
    return _write(directory, config, ((name, _shape(name, config)) for name in model.tensor_names()), fp8=fp8)


def _shape(name: str, config: dict[str, Any]) -> tuple[int, ...]:
    """That of a decoder's tensor."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    inner = config["moe_intermediate_size" if ".experts." in name else "intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (config["vocab_size"], hidden),
        "lm_head": (config["vocab_size"], hidden),
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "q_norm": (dim,),
        "k_norm": (dim,),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
        "gate": (config.get("num_experts", 0), hidden),
    }
    return shapes.get(name.split(".")[-2], (hidden,))


def _write(
    directory: Path, config: dict[str, Any], tensors: Iterator[tuple[str, tuple[int, ...]]], *, fp8: bool
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    headers: list[dict[str, Any]] = [{} for _ in range(_SHARDS)]
    ends = [0] * _SHARDS
    weight_map = {}
    for index, (name, shape) in enumerate(tensors):
        dtype = "F8_E4M3" if fp8 and _QUANTIZED.match(name) else "BF16"
        shard = index % _SHARDS
        end = ends[shard] + math.prod(shape) * _ITEMS[dtype]
        headers[shard][name] = {"dtype": dtype, "shape": shape, "data_offsets": [ends[shard], end]}
        ends[shard] = end
        weight_map[name] = f"model-{shard}.safetensors"
    for shard, header in enumerate(headers):
        text = json.dumps(header).encode()
        with (directory / f"model-{shard}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + ends[shard])
    if fp8:
        config = {**config, "quantization_config": {"quant_method": "fp8"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory
