"""Stages of the servers that the launcher's tests start. Imported by their processes: nothing heavy here."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sglang_omni.proto import StagePayload


def upper() -> Callable[[StagePayload], dict]:
    return lambda payload: {"text": payload.request.inputs["prompt"].upper()}


def answer() -> Callable[[StagePayload], dict]:
    def run(payload: StagePayload) -> dict:
        if payload.data["text"] == "HANG":
            threading.Event().wait()
        return {"modality": "text", "text": payload.data["text"], "finish_reason": "stop"}

    return run


def broken() -> None:
    raise FileNotFoundError("no weights in /nowhere")


def never() -> None:
    """A model that takes for ever to load."""
    threading.Event().wait()
