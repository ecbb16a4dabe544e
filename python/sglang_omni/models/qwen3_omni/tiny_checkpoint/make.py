"""Writing of tiny random checkpoints: ``sgl-omni make-tiny-checkpoint qwen3_omni DIR --seed N``."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_omni.models.qwen3_omni.tiny_checkpoint.shape import TinyShape
from sglang_omni.models.qwen3_omni.tiny_checkpoint.tokenizer import TinyTokenizer
from sglang_omni.models.qwen3_omni.tiny_checkpoint.weights import tensor_specs
from sglang_omni.models.tiny.tensors import TensorSpec, make_tensor
from sglang_omni.models.tiny.tokenizer import WordTokenizer, write_json
from sglang_omni.published import STORED, published_model
from sglang_omni.random_weights import mark_random


def make_tiny_checkpoint(
    directory: str | Path,
    seed: int,
    shape: TinyShape | None = None,
    tokenizer: WordTokenizer | None = None,
) -> Path:
    """Writes a random checkpoint with all the files of a published one. Equal arguments give equal bytes.

    Args:
        directory: Created if it does not exist; files of the same names are replaced.
        seed: Of the weights.
        shape: Sizes of the model; None for the defaults.
        tokenizer: None for one that is learned from some words, of the shape's ``vocab_size``.

    Returns:
        ``directory``.

    Raises:
        ValueError: The vocabulary is too small for the tokenizer.
    """
    shape = shape or TinyShape()
    directory = Path(directory)
    tokenizer = tokenizer or TinyTokenizer(shape.vocab_size)
    directory.mkdir(parents=True, exist_ok=True)
    config = shape.config(tokenizer)
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", _generation_config(talker=shape.talker))
    preprocessor = published_model("qwen3_omni").config("preprocessor_config.json")
    write_json(directory / "preprocessor_config.json", preprocessor)
    tokenizer.write(directory)
    mark_random(directory)
    _write_weights(directory, config, tokenizer, seed, shape)
    return directory


def _generation_config(*, talker: bool) -> dict[str, Any]:
    """The published one: all of its fields are the talker's."""
    return published_model("qwen3_omni").config("generation_config.json") if talker else {}


def _write_weights(
    directory: Path, config: dict[str, Any], tokenizer: WordTokenizer, seed: int, shape: TinyShape
) -> None:
    specs = list(tensor_specs(config, answer_ends=tokenizer.id("<|im_end|>"), text_ids=len(tokenizer.vocab)))
    size = -(-len(specs) // shape.shards)
    weight_map: dict[str, str] = {}
    total = 0
    for shard in range(shape.shards):
        file = f"model-{shard + 1:05d}-of-{shape.shards:05d}.safetensors"
        members = specs[shard * size : (shard + 1) * size]
        total += _write_safetensors(directory / file, members, seed, shape.dtype)
        weight_map.update(dict.fromkeys((spec.name for spec in members), file))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(directory / "model.safetensors.index.json", index)


def _write_safetensors(path: Path, specs: Sequence[TensorSpec], seed: int, dtype: str) -> int:
    """Writes one file (github.com/huggingface/safetensors#format); returns the tensors' size in bytes.

    Not by the library, which takes bfloat16 only from torch, whose import takes longer than all of this.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    item_size = 4 if dtype == "float32" else 2
    end = 0
    for spec in specs:
        begin, end = end, end + item_size * math.prod(spec.shape)
        header[spec.name] = {"dtype": STORED[dtype], "shape": spec.shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        for spec in specs:
            file.write(_encode(make_tensor(spec, seed), dtype))
    return end


def _encode(values: NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "bfloat16":
        # The upper 16 bits of float32, rounded to nearest, ties to even.
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return values.astype({"float32": "<f4", "float16": "<f2"}[dtype]).tobytes()
