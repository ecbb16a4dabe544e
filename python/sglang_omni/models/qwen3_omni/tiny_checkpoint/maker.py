"""What ``sgl-omni make-tiny-checkpoint qwen3_omni`` calls: the options, and the checkpoint of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_omni.models.qwen3_omni.tiny_checkpoint.shape import TinyShape

SHAPE = TinyShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """``make_tiny_checkpoint`` with the fields of a ``TinyShape`` as arguments."""
    # Imported late, so that --help is fast.
    from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint

    return make_tiny_checkpoint(path, seed, TinyShape(**shape))
