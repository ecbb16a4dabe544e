"""What a checkpoint says of its quantization."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_omni.engines.options import EngineOptions

# NVIDIA's ModelOpt writes a file of its own.
_MODELOPT_FILE = "hf_quant_config.json"


def quantization_config(model_path: Path) -> Mapping[str, Any] | None:
    """The ``quantization_config`` of a checkpoint's ``config.json``; None if there is none."""
    file = model_path / "config.json"
    # A decoder's own reader may know a checkpoint of other files.
    fields = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for part in (fields, fields.get("thinker_config") or {}, fields.get("text_config") or {}):
        if found := part.get("quantization_config") or part.get("compression_config"):
            return dict(found)
    return None


def quantization_of(model_path: Path) -> str | None:
    """The name of a checkpoint's quantization, such as ``"fp8"``; None for one that is not quantized."""
    config = quantization_config(model_path)
    if config is not None:
        return str(config.get("quant_method") or config.get("quant_algo") or "in an unnamed way")
    return "modelopt" if (model_path / _MODELOPT_FILE).is_file() else None


def refuse_quantization(model_path: Path, options: EngineOptions) -> None:
    """Raise ValueError if a checkpoint or its options ask for what only SGLang's kernels compute."""
    if (method := quantization_of(model_path)) is not None:
        raise ValueError(
            f"{model_path} is quantized ({method}): engine 'sglang' on a GPU reads it, engine 'omni' does not"
        )
    for name, given in (
        ("quantization", options.quantization),
        ("kv_cache_dtype", None if options.kv_cache_dtype == "auto" else options.kv_cache_dtype),
        ("attention_backend", options.attention_backend),
    ):
        if given is not None:
            raise ValueError(f"{name}={given!r} is for engine 'sglang' on a GPU; engine 'omni' does without")
