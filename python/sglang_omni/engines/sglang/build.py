"""Builds an engine on SGLang from a decoder's description."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from sglang_omni.engines.options import DecoderSpec, EngineOptions
from sglang_omni.engines.quantization import quantization_of
from sglang_omni.engines.sglang import compat
from sglang_omni.engines.sglang.weight_links import with_chosen_weights
from sglang_omni.model_runner.config import FAMILIES, DecoderConfig
from sglang_omni.model_runner.loader import DTYPES

if TYPE_CHECKING:
    from sglang_omni.engines.sglang.engine import SGLangEngine


def build_sglang_engine(spec: DecoderSpec, options: EngineOptions) -> SGLangEngine:
    """An engine that SGLang schedules.

    A text checkpoint gets SGLang's own model class, as from ``build_sglang_text_engine``. ``OmniDecoder``,
    made of SGLang's layers, serves all others.

    Raises:
        ImportError: SGLang is not installed, or not of the supported version.
        FileNotFoundError, ValueError: A file or tensor of the checkpoint is missing, misshapen or unknown.
        RuntimeError: This process is already in another tensor parallel group.
    """
    refuse_windows(spec)
    _prepare(spec.model_path, options, spec.config)
    from sglang_omni.engines.sglang.engine import SGLangEngine
    from sglang_omni.engines.sglang.text_models import register_own_class

    is_text = not spec.component and spec.strategy is None and spec.capture_layer is None
    if is_text and register_own_class(_fields(spec.model_path), options.device, spec.config):
        with with_chosen_weights(spec.model_path) as directory:
            return SGLangEngine(compat.Runtime(directory, options), spec, options)

    if options.lora_paths:
        raise ValueError(
            f"{spec.model_path}: LoRA adapters need a class of SGLang's own for the model, which is not used "
            "here: leave --lora-paths out"
        )
    from sglang_omni.engines.sglang.models.decoder import OmniDecoder
    from sglang_omni.engines.sglang.weights import loader_of, write_config

    compat.register_model(OmniDecoder)
    # SGLang reads a config.json of its own while it starts, and not afterwards.
    with TemporaryDirectory(prefix="sglang-omni-") as folder:
        write_config(Path(folder), spec)
        runtime = compat.Runtime(
            Path(folder), options, load_format=loader_of(spec), steps_ahead=spec.steps_ahead
        )
        return SGLangEngine(runtime, spec, options)


def build_sglang_text_engine(model_path: Path, options: EngineOptions) -> SGLangEngine:
    """An engine for a checkpoint that holds nothing but a language model, of any architecture of SGLang's.

    Raises:
        ImportError: SGLang is not installed, or not of the supported version.
        FileNotFoundError, ValueError: A file of the checkpoint is missing or wrong, or SGLang has no class
            for its architecture.
        RuntimeError: This process is already in another tensor parallel group.
    """
    from sglang_omni.engines.sglang.text_models import (
        foreign_spec,
        has_odd_positions,
        known_spec,
        register_own_class,
    )

    known = known_spec(model_path)
    if known is not None and quantization_of(model_path) is None:
        return build_sglang_engine(known, options)
    _prepare(model_path, options, None if known is None else known.config)
    from sglang_omni.engines.sglang.engine import SGLangEngine

    if known is not None:
        refuse_windows(known)
        if has_odd_positions(_fields(model_path), known.config):
            raise ValueError(
                f"{model_path}: SGLang's own classes, which read quantized weights, compute YaRN by factor, "
                "original_max_position_embeddings, beta_fast, beta_slow and truncate alone: serve weights "
                "that are not quantized"
            )
    register_own_class(_fields(model_path), options.device, None)
    with with_chosen_weights(model_path) as directory:
        runtime = compat.Runtime(directory, options)
        with runtime.active():
            spec = foreign_spec(model_path, runtime.server_args)
    return SGLangEngine(runtime, spec, options)


def refuse_windows(spec: DecoderSpec) -> None:
    """Raise ValueError for layers with a sliding window, which SGLang's layers of these families ignore."""
    if spec.config.sliding_layers:
        raise ValueError(
            f"{spec.model_path}: layers with a sliding window (use_sliding_window in config.json) are "
            "computed by engine 'omni': leave --engine out"
        )


def check_sglang(model_path: Path, options: EngineOptions) -> None:
    """Check that SGLang is installed, and computes this checkpoint on its device. Imports nothing of it.

    Raises:
        ImportError: It is not installed, or not of the supported version.
        ValueError: It does not compute it there.
    """
    compat.check_version()
    if options.device == "cpu" and (method := quantization_of(model_path) or options.quantization):
        raise ValueError(
            f"{model_path}: quantization {method!r} is computed by SGLang's kernels on a GPU: place the "
            "stage on one, as in --stage thinker.gpu=0"
        )
    fields = _fields(model_path)
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    # Classes of other families may have embeddings of their own.
    if fields.get("model_type") in FAMILIES and kind not in compat.ROPE_TYPES:
        raise ValueError(
            f"{model_path}/config.json: no engine computes rope_type {kind!r}; known: "
            f"{', '.join(compat.ROPE_TYPES)}; take a checkpoint with one of these"
        )


def _prepare(model_path: Path, options: EngineOptions, config: DecoderConfig | None) -> None:
    check_sglang(model_path, options)
    compat.prepare(options.device)
    if options.device != "cpu":
        from sglang_omni.engines.sglang.kernels import build_kernels

        build_kernels(DTYPES[options.dtype], config)
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)


def _fields(model_path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((model_path / "config.json").read_text(encoding="utf-8"))
    return fields
