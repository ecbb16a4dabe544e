"""Engines for checkpoints that hold nothing but a language model."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from sglang_omni.engines.base import TokenEngine
from sglang_omni.engines.build import build_engine
from sglang_omni.engines.options import DecoderSpec, EngineKind, EngineOptions
from sglang_omni.engines.quantization import quantization_of
from sglang_omni.model_runner.config import FAMILIES

logger = logging.getLogger(__name__)


def default_text_engine(model_path: Path, device: str) -> EngineKind:
    """The engine for a text checkpoint: on a GPU SGLang's, on a CPU the faster one that knows the model."""
    return "omni" if device == "cpu" and _only_sglang(model_path) is None else "sglang"


def build_text_engine(kind: EngineKind | None, model_path: Path, options: EngineOptions) -> TokenEngine:
    """An engine for a text checkpoint.

    Args:
        kind: None for ``default_text_engine``; if that is SGLang's, which cannot be loaded, for the engine
            "omni" if it knows the model, with a warning.
        model_path: The checkpoint's directory.
        options: The engine's options.

    Raises:
        ImportError: SGLang is needed, but is not installed, not of the supported version, or lacks kernels.
        FileNotFoundError, ValueError: The checkpoint or an option is wrong, or no engine knows the model.
    """
    chosen = kind or default_text_engine(model_path, options.device)
    if chosen == "sglang":
        from sglang_omni.engines.sglang.build import build_sglang_text_engine

        reason = _only_sglang(model_path)
        try:
            return build_sglang_text_engine(model_path, options)
        except ImportError as exc:
            if kind is not None:
                raise
            if reason is not None:
                raise ImportError(
                    f"{model_path}: {reason}, which only engine 'sglang' computes: {exc}"
                ) from exc
            logger.warning("SGLang cannot be used, so that engine 'omni' computes %s: %s", model_path, exc)
            chosen = "omni"
    return build_engine(chosen, DecoderSpec.from_dir(model_path), options)


def _only_sglang(model_path: Path) -> str | None:
    """Why only SGLang can compute a model; None if engine "omni" can as well."""
    fields: dict[str, Any] = json.loads((model_path / "config.json").read_text(encoding="utf-8"))
    if fields.get("model_type") not in FAMILIES:
        return f"its model_type is {fields.get('model_type')!r}"
    method = quantization_of(model_path)
    return None if method is None else f"it is quantized ({method})"
