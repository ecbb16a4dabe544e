"""Runs the router until a signal ends its process."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from types import FrameType
from typing import Any

from sglang_omni._core import RouterServer
from sglang_omni.router.config import RouterConfig

# The wait returns this often to the interpreter, which runs signal handlers only then.
_SIGNAL_CHECK_S = 0.1


def with_keys_from_environment(config: RouterConfig) -> RouterConfig:
    """The config with missing keys from SGLANG_OMNI_ROUTER_API_KEY (several, separated by spaces),
    SGLANG_OMNI_ROUTER_WORKER_API_KEY and SGLANG_OMNI_ROUTER_ADMIN_API_KEY."""
    found: dict[str, Any] = {}
    if not (config.api_key or config.api_key_file):
        found["api_key"] = os.environ.get("SGLANG_OMNI_ROUTER_API_KEY", "").split()
    if not (config.worker_api_key or config.worker_api_key_file):
        found["worker_api_key"] = os.environ.get("SGLANG_OMNI_ROUTER_WORKER_API_KEY") or None
    if not (config.admin_api_key or config.admin_api_key_file):
        found["admin_api_key"] = os.environ.get("SGLANG_OMNI_ROUTER_ADMIN_API_KEY") or None
    return replace(config, **found)


def run_router(config: RouterConfig) -> int:
    """Serves until SIGTERM (finishes requests in flight) or SIGINT (ends at once); a second SIGTERM also ends
    at once. SIGHUP reads the workers' file and the certificate and resolves the workers' names again. Must be
    called from the main thread of its own process.

    Returns:
        The exit status, 0 after either signal.

    Raises:
        ValueError: A field of `config` is wrong; the text names it.
        OSError: The router cannot listen on the port.
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
