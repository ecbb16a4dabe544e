"""A stage that feeds two others. Imported by the stages' processes, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sglang_omni.proto import OmniRequest, StagePayload


def block() -> Callable[[StagePayload], Any]:
    """An array for the stage the request names."""
    return lambda payload: {"block": np.full(400_000, 7, np.uint8)}


def route_to_named(request_id: str, output: StagePayload) -> str:
    return output.request.inputs["to"]


def terminal_named(request: OmniRequest) -> list[str]:
    return [request.inputs["to"]]


def total() -> Callable[[StagePayload], int]:
    return lambda payload: int(payload.data["block"].sum())
