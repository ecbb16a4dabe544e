"""Stages of the servers that the launcher's tests start. Imported by their processes: nothing heavy here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sglang_omni.proto import StagePayload


def upper() -> Callable[[StagePayload], dict]:
    return lambda payload: {"text": payload.request.inputs["prompt"].upper()}


def answer() -> Callable[[StagePayload], dict]:
    def run(payload: StagePayload) -> dict:
        if payload.data["text"] == "HANG":
            threading.Event().wait()
        while payload.data["text"] == "WAIT" and not Path(os.environ["TEST_RELEASE_FILE"]).exists():
            time.sleep(0.02)
        return {"modality": "text", "text": payload.data["text"], "finish_reason": "stop"}

    return run


def broken() -> None:
    raise FileNotFoundError("no weights in /nowhere")


def never() -> None:
    """A model that takes for ever to load."""
    threading.Event().wait()
