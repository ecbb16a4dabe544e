"""Engines for checkpoints that hold nothing but a language model."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

from sglang_omni.engines.base import Engine
from sglang_omni.engines.build import build_engine
from sglang_omni.engines.options import DecoderSpec, EngineKind, EngineOptions
from sglang_omni.engines.quantization import quantization_of
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.config import FAMILIES

logger = logging.getLogger(__name__)


def default_text_engine(model_path: Path, device: str) -> EngineKind:
    """The engine for a text checkpoint: on a GPU SGLang's, on a CPU the faster one that knows the model.

    Without SGLang, a GPU gets the engine "omni" if that knows the model, with a warning.
    """
    known = _fields(model_path).get("model_type") in FAMILIES and quantization_of(model_path) is None
    if device == "cpu":
        return "omni" if known else "sglang"
    if known and importlib.util.find_spec("sglang") is None:
        logger.warning(
            "SGLang is not installed: %s is computed by engine 'omni', which is slower", model_path
        )
        return "omni"
    return "sglang"


def build_text_engine(
    kind: EngineKind | None, model_path: Path, options: EngineOptions
) -> Engine[EngineRequest]:
    """An engine for a text checkpoint.

    Args:
        kind: None for ``default_text_engine``.
        model_path: The checkpoint's directory.
        options: The engine's options.

    Raises:
        ImportError: SGLang is needed, but is not installed or not of the supported version.
        FileNotFoundError, ValueError: The checkpoint or an option is wrong, or no engine knows the model.
    """
    kind = kind or default_text_engine(model_path, options.device)
    if kind != "sglang":
        return build_engine(kind, DecoderSpec.from_dir(model_path), options)
    if importlib.util.find_spec("sglang") is None and (reason := _only_sglang(model_path)) is not None:
        raise ImportError(f"{model_path}: {reason}, which only engine 'sglang' computes: it is not installed")
    from sglang_omni.engines.sglang.build import build_sglang_text_engine

    return build_sglang_text_engine(model_path, options)


def _only_sglang(model_path: Path) -> str | None:
    fields = _fields(model_path)
    if fields.get("model_type") not in FAMILIES:
        return f"its model_type is {fields.get('model_type')!r}"
    method = quantization_of(model_path)
    return None if method is None else f"it is quantized ({method})"


def _fields(model_path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((model_path / "config.json").read_text(encoding="utf-8"))
    return fields
