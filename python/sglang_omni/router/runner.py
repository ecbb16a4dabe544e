"""Runs the router for the life of a process."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from types import FrameType
from typing import Any

from sglang_omni._core import RouterServer
from sglang_omni.router.config import RouterConfig

# How often the wait returns to the interpreter, which runs signal handlers only then.
_SIGNAL_CHECK_S = 0.1


def with_keys_from_environment(config: RouterConfig) -> RouterConfig:
    """The config, with keys from SGLANG_OMNI_ROUTER_API_KEY (several apart by spaces),
    SGLANG_OMNI_ROUTER_WORKER_API_KEY and SGLANG_OMNI_ROUTER_ADMIN_API_KEY where it has none."""
    found: dict[str, Any] = {}
    if not (config.api_key or config.api_key_file):
        found["api_key"] = os.environ.get("SGLANG_OMNI_ROUTER_API_KEY", "").split()
    if not (config.worker_api_key or config.worker_api_key_file):
        found["worker_api_key"] = os.environ.get("SGLANG_OMNI_ROUTER_WORKER_API_KEY") or None
    if not (config.admin_api_key or config.admin_api_key_file):
        found["admin_api_key"] = os.environ.get("SGLANG_OMNI_ROUTER_ADMIN_API_KEY") or None
    return replace(config, **found)


def run_router(config: RouterConfig) -> int:
    """Serves until SIGTERM (finishes what is in flight) or SIGINT (ends at once); a second SIGTERM also
    ends at once. SIGHUP has it read the workers' file and the certificate and resolve the workers' names
    again. Call it from the main thread of a process of its own.

    Returns:
        The exit status, 0 after either signal.

    Raises:
        ValueError: A field of `config` is wrong; the text names it.
        OSError: The port cannot be listened on.
    """
    server = RouterServer(json.dumps(vars(with_keys_from_environment(config))))

    def on_terminate(_signum: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, on_interrupt)
        server.drain()

    def on_interrupt(_signum: int, _frame: FrameType | None) -> None:
        server.stop()

    def on_hangup(_signum: int, _frame: FrameType | None) -> None:
        server.reload()

    before = {
        signal.SIGHUP: signal.signal(signal.SIGHUP, on_hangup),
        signal.SIGTERM: signal.signal(signal.SIGTERM, on_terminate),
        signal.SIGINT: signal.signal(signal.SIGINT, on_interrupt),
    }
    try:
        server.announce()
        while not server.wait(_SIGNAL_CHECK_S):
            pass
    finally:
        server.stop()
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return 0
