"""Stages for the soak of kills: they add one to an array and hand it on. numpy alone, to start fast."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from traces import traces_of

from sglang_omni.proto import StagePayload
from sglang_omni.relay.shm.relay import ShmRelay


def add_one(name: str) -> Callable[[StagePayload], dict[str, Any]]:
    """For a request ``{"size", "value"}``. ``{"inspect": True}`` asks what this process has instead."""

    def run(payload: StagePayload) -> dict[str, Any]:
        inputs = payload.request.inputs
        if "inspect" in inputs:
            return {**payload.data, name: _inspect()}
        array = payload.data.get("array")
        if array is None:
            array = np.full(inputs["size"], inputs["value"], np.uint8)
        return {"array": array + 1}

    return run


def summarize(name: str) -> Callable[[StagePayload], dict[str, Any]]:
    """The last stage: what the array holds, or what all stages said of themselves."""

    def run(payload: StagePayload) -> dict[str, Any]:
        if "inspect" in payload.request.inputs:
            return {**payload.data, name: _inspect()}
        array = payload.data["array"]
        return {"size": array.size, "low": int(array.min()), "high": int(array.max())}

    return run


def _inspect() -> dict[str, int]:
    gc.collect()
    gc.unfreeze()  # What a worker has frozen is not among the collector's objects.
    relays = [obj for obj in gc.get_objects() if isinstance(obj, ShmRelay)]
    gc.freeze()
    if not relays:
        raise RuntimeError("no relay is found in this process, so nobody can say what credits it holds")
    traces = traces_of(os.getpid())
    return {
        "credits": sum(held["held"] for relay in relays for held in relay.stats().values()),
        "descriptors": traces.descriptors,
        "memfds": traces.memfds,
        "shared": traces.shared,
        "relays": len(relays),
    }
