"""Engines of our own for text checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_omni.engines import DecoderSpec, EngineOptions, OmniEngine
from sglang_omni.engines.build import build_omni_engine


def text_engine(model_path: Path, **options: Any) -> OmniEngine:
    """``options`` are those of ``EngineOptions``."""
    return build_omni_engine(DecoderSpec.from_dir(model_path), EngineOptions(**options))
