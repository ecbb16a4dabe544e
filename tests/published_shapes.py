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

# The fields of config.json that decide what a decoder takes.
TEXT_MODELS: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
    },
    "Qwen3-8B": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
}


def write_qwen3_omni(directory: Path, *, fp8: bool = False) -> Path:
    """Writes Qwen3-Omni-30B-A3B-Instruct; with ``fp8``, linear weights of its decoders take a byte each."""
    config = published_model("qwen3_omni").config()
    specs = tensor_specs(config, answer_ends=0, text_ids=0)
    return _write(directory, config, ((spec.name, spec.shape) for spec in specs), fp8=fp8)


def write_text_model(directory: Path, name: str, *, fp8: bool = False) -> Path:
    """Writes one of ``TEXT_MODELS``."""
    config = {"rms_norm_eps": 1e-6, "hidden_act": "silu", **TEXT_MODELS[name]}
    return _write(directory, config, _decoder(config), fp8=fp8)


def _decoder(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        yield name, (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", (hidden,)
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"{prefix}.self_attn.{name}.weight", (rows, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, queries)
        inner, places = config["intermediate_size"], [f"{prefix}.mlp"]
        if experts := config.get("num_experts"):
            inner = config["moe_intermediate_size"]
            places = [f"{prefix}.mlp.experts.{expert}" for expert in range(experts)]
            yield f"{prefix}.mlp.gate.weight", (experts, hidden)
        for place in places:
            for name in ("gate_proj", "up_proj"):
                yield f"{place}.{name}.weight", (inner, hidden)
            yield f"{place}.down_proj.weight", (hidden, inner)


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
