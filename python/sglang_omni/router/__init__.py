"""The router: one address for many servers. It runs in Rust (`rust/router`); this package configures it."""

from __future__ import annotations

from sglang_omni.router.config import RouterConfig
from sglang_omni.router.runner import run_router

__all__ = ["RouterConfig", "run_router"]
