"""The router in front of replicas: one address, many servers. The work is done in Rust (`rust/router`)."""

from __future__ import annotations

from sglang_omni.router.config import RouterConfig
from sglang_omni.router.runner import run_router

__all__ = ["RouterConfig", "run_router"]
