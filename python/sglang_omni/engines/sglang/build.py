"""From a decoder's description to an engine on SGLang."""

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

    A text checkpoint that SGLang has a model class for is served by that; all others by a decoder of ours
    that is made of SGLang's layers.

    Raises:
        ImportError: SGLang is not installed, or of a version that is not supported.
        FileNotFoundError, ValueError: A file or tensor of the checkpoint is missing, misshapen or unknown.
        RuntimeError: This process is in another tensor parallel group already.
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
    # SGLang reads a config.json of its own while it starts, and never again.
    with TemporaryDirectory(prefix="sglang-omni-") as directory:
        write_config(Path(directory), spec.config)
        runtime = compat.Runtime(Path(directory), options, load_format=loader_of(spec))
        return SGLangEngine(runtime, spec, options)


def _is_text_checkpoint(spec: DecoderSpec) -> bool:
    if spec.component or spec.strategy is not None or spec.capture_layer is not None:
        return False
    fields = json.loads((spec.model_path / "config.json").read_text())
    return compat.register_text_model(fields)
