"""Builds an engine on SGLang from a decoder's description."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from sglang_omni.engines.options import DecoderSpec, EngineOptions
from sglang_omni.engines.sglang import compat

if TYPE_CHECKING:
    from sglang_omni.engines.sglang.engine import SGLangEngine


def build_sglang_engine(spec: DecoderSpec, options: EngineOptions) -> SGLangEngine:
    """An engine that SGLang schedules.

    SGLang's own model class serves a text checkpoint if there is one; ``OmniDecoder``, made of SGLang's
    layers, serves all others.

    Raises:
        ImportError: SGLang is not installed, or not of the supported version.
        FileNotFoundError, ValueError: A file or tensor of the checkpoint is missing, misshapen or unknown.
        RuntimeError: This process is already in another tensor parallel group.
    """
    compat.prepare(options.device)
    from sglang_omni.engines.sglang.engine import SGLangEngine

    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    if _is_text_checkpoint(spec):
        return SGLangEngine(compat.Runtime(spec.model_path, options), spec, options)

    from sglang_omni.engines.sglang.models.decoder import OmniDecoder
    from sglang_omni.engines.sglang.weights import loader_of, write_config

    compat.register_model(OmniDecoder)
    # SGLang reads a config.json of its own while it starts, and not afterwards.
    with TemporaryDirectory(prefix="sglang-omni-") as directory:
        write_config(Path(directory), spec.config)
        runtime = compat.Runtime(Path(directory), options, load_format=loader_of(spec))
        return SGLangEngine(runtime, spec, options)


def _is_text_checkpoint(spec: DecoderSpec) -> bool:
    if spec.component or spec.strategy is not None or spec.capture_layer is not None:
        return False
    fields = json.loads((spec.model_path / "config.json").read_text())
    return compat.register_text_model(fields)
