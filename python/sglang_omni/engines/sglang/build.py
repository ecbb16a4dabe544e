"""From a decoder's description to an engine on SGLang."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

from sglang_omni.engines.options import DecoderSpec, EngineOptions
from sglang_omni.engines.sglang import compat

if TYPE_CHECKING:
    from sglang_omni.engines.sglang.engine import SGLangEngine


def build_sglang_engine(spec: DecoderSpec, options: EngineOptions) -> SGLangEngine:
    """An engine that SGLang schedules.

    Text checkpoints are served by SGLang's own model classes.

    Raises:
        ImportError: SGLang is not installed, or of a version that is not supported.
        ValueError: SGLang has no model class that computes this checkpoint.
        RuntimeError: This process is in another tensor parallel group already.
    """
    compat.prepare(options.device)
    from sglang_omni.engines.sglang.engine import SGLangEngine

    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    fields = json.loads((spec.model_path / "config.json").read_text())
    compat.register_text_model(fields)
    return SGLangEngine(compat.Runtime(spec.model_path, options), spec.config, options)
