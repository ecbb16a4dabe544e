"""Stages for the tests of worker processes. Imported by those processes, so it imports nothing heavy."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sglang_omni.proto import RequestError, StagePayload

logger = logging.getLogger(__name__)


def trace(name: str, folder: str = "") -> Callable[[StagePayload], dict]:
    """Adds ``name`` and its process id to the payload; holds requests that ask for it until told to go on.

    A request ``{"hold": name}`` makes the stage create ``folder/name.held`` and wait for ``folder/name.go``.
    """

    def run(payload: StagePayload) -> dict:
        inputs = payload.request.inputs
        if inputs.get("hold") == name:
            Path(folder, f"{name}.held").touch()
            while not Path(folder, f"{name}.go").exists():
                time.sleep(0.01)
        if inputs.get("exit") == name:
            os._exit(7)
        if inputs.get("raise") == name:
            raise ZeroDivisionError("the stage's own error")
        if inputs.get("refuse") == name:
            raise RequestError("too loud", param="volume")
        seen = payload.data.get("seen", {})
        return {"seen": {**seen, name: os.getpid()}}

    return run


def asynchronous() -> Callable:
    async def run(payload: StagePayload) -> str:
        return payload.data["raw_inputs"].upper()

    return run


def broken() -> None:
    raise FileNotFoundError("no weights in /nowhere")


def broken_after(folder: str) -> Callable[[StagePayload], int]:
    """Works in the first process that calls it, fails in every later one."""
    marker = Path(folder, "built")
    if marker.exists():
        raise FileNotFoundError("the weights are gone")
    marker.touch()
    return lambda payload: os.getpid()


def never_ready() -> None:
    time.sleep(600)


def wrong_product() -> int:
    return 3


def environment(names: list[str]) -> Callable[[StagePayload], dict]:
    """What the environment held when the factory ran."""
    seen = {name: os.environ.get(name) for name in names}
    return lambda payload: seen


def worker_of_request() -> Callable[[StagePayload], str]:
    """Tells the workers of one stage apart."""
    identity = object()
    return lambda payload: str(id(identity))


def logs_a_line() -> Callable[[StagePayload], str]:
    def run(payload: StagePayload) -> str:
        logger.warning("a line from a stage")
        return "logged"

    return run


def after_first(request_id: str, output: StagePayload) -> str | None:
    return output.request.inputs.get("route")


def main_module_path() -> Callable[[StagePayload], str]:
    return lambda payload: str(sys.path)
