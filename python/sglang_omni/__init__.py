"""Serving of omni models (text, image, audio and video in; text and speech out) as pipelines of stages.

Importing this package imports neither torch nor transformers: each stage imports them in its own process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sglang_omni._core import __version__

if TYPE_CHECKING:
    from sglang_omni.client import Client, SyncClient
    from sglang_omni.config import PipelineConfig, StageConfig

__all__ = ["Client", "PipelineConfig", "StageConfig", "SyncClient", "__version__"]

_LAZY = {
    "Client": "sglang_omni.client",
    "SyncClient": "sglang_omni.client",
    "PipelineConfig": "sglang_omni.config",
    "StageConfig": "sglang_omni.config",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
