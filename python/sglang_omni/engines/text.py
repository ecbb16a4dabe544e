"""Engines for checkpoints that hold nothing but a language model."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sglang_omni.engines.base import TokenEngine
from sglang_omni.engines.build import build_engine
from sglang_omni.engines.options import DecoderSpec, EngineKind, EngineOptions
from sglang_omni.engines.quantization import quantization_of
from sglang_omni.model_runner.config import DecoderConfig, UnsupportedDecoder
from sglang_omni.model_runner.headers import HeaderReport, NotCompared, header_report

logger = logging.getLogger(__name__)


def default_text_engine(model_path: Path, options: EngineOptions) -> EngineKind:
    """The engine for a text checkpoint: on a GPU SGLang's, on a CPU the faster one that can compute it.

    Raises:
        ValueError: Neither engine can.
    """
    if (only := only_engine(model_path, options)) is not None:
        return only.kind
    return "omni" if options.device == "cpu" else "sglang"


class OnlyEngine(NamedTuple):
    """The one engine that can compute a model, and why."""

    kind: EngineKind
    reason: str


def only_engine(model_path: Path, options: EngineOptions) -> OnlyEngine | None:
    """The engine that alone can compute a text checkpoint; None if both can.

    Raises:
        ValueError: Neither can: the checkpoint needs one, and an option the other.
    """
    try:
        config = DecoderConfig.from_dir(model_path)
    except UnsupportedDecoder as exc:
        return OnlyEngine("sglang", exc.reason)
    reason = None
    if options.lora_paths:
        reason = "it has LoRA adapters"
    elif (method := quantization_of(model_path)) is not None:
        reason = f"it is quantized ({method})"
    if config.sliding_layers:
        if reason is not None:
            raise ValueError(
                f"{model_path} needs engine 'sglang', because {reason}, and engine 'omni', because it has "
                "layers with a sliding window (use_sliding_window in config.json): leave the former out"
            )
        return OnlyEngine("omni", "it has layers with a sliding window")
    return None if reason is None else OnlyEngine("sglang", reason)


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
    if (report := header_report()) is not None:
        return _from_headers(report, kind, model_path, replace(options, device=report.device), options)
    chosen = kind or default_text_engine(model_path, options)
    if chosen == "sglang":
        from sglang_omni.engines.sglang.build import build_sglang_text_engine

        only = only_engine(model_path, options)
        try:
            return build_sglang_text_engine(model_path, options)
        except ImportError as exc:
            if kind is not None:
                raise
            if only is not None:
                raise ImportError(
                    f"{model_path} needs engine 'sglang', because {only.reason}: {exc}"
                ) from exc
            logger.warning("SGLang cannot be used, so that engine 'omni' computes %s: %s", model_path, exc)
            chosen = "omni"
    return build_engine(chosen, DecoderSpec.from_dir(model_path), options)


def _from_headers(
    report: HeaderReport,
    kind: EngineKind | None,
    model_path: Path,
    options: EngineOptions,
    on_meta: EngineOptions,
) -> TokenEngine:
    """As ``build_text_engine``, inside of ``headers_only``.

    Args:
        options, on_meta: The engine's, with the device that it would have, and with the meta device.

    Raises:
        NotCompared: SGLang's own class reads the checkpoint.
    """
    only = only_engine(model_path, options)
    if kind is None and only is not None:
        report.engine = f"{only.kind}, because {only.reason}"
    if (kind or default_text_engine(model_path, options)) == "sglang" and only is not None:
        from sglang_omni.engines.sglang.build import check_sglang

        try:
            check_sglang(model_path, options)
        except ImportError as exc:
            raise ImportError(f"{model_path} needs engine 'sglang', because {only.reason}: {exc}") from exc
        raise NotCompared("SGLang's own class reads them")
    return build_engine(kind, DecoderSpec.from_dir(model_path), on_meta)
