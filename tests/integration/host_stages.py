"""Stages that run on several hosts. Imported by their processes, so it imports little."""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from process_factories import StreamSink, WordSource

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage


def network() -> str:
    """What tells this host of a test's network from the others."""
    return os.readlink("/proc/self/ns/net")


def hold(payload: StagePayload, stage: str, folder: str) -> None:
    """A request with ``hold`` and a name waits in that stage until there is ``folder/name``."""
    inputs = payload.request.inputs
    if inputs.get("hold") == stage:
        Path(folder, f"{inputs['name']}.held").touch()
        while not Path(folder, inputs["name"]).exists():
            time.sleep(0.01)


def noise(folder: str) -> Callable[[StagePayload], dict[str, Any]]:
    """As many MiB of noise as the request asks for."""

    def run(payload: StagePayload) -> dict[str, Any]:
        hold(payload, "noise", folder)
        inputs = payload.request.inputs
        numbers = np.random.default_rng(inputs["seed"]).integers(0, 256, inputs["mib"] << 20, dtype=np.uint8)
        return {"noise": numbers}

    return run


def invert(folder: str) -> Callable[[StagePayload], dict[str, Any]]:
    """The noise with every bit turned, and what tells where that was done."""

    def run(payload: StagePayload) -> dict[str, Any]:
        hold(payload, "invert", folder)
        if payload.request.inputs.get("exit"):
            os._exit(7)
        return {
            "noise": ~payload.data["noise"],
            "where": network(),
            "pid": os.getpid(),
            "setting": os.environ.get("TEST_OF_HOSTS"),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }

    return run


class Chunks(WordSource):
    """Streams the noise to the next stage in pieces of 150 KB, and sends on the rest of its payload."""

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            data = dict(message.data.data)
            noise = data.pop("noise")
            for start in range(0, len(noise), 150_000):
                self.outbox.put(
                    OutgoingMessage(
                        message.request_id, "stream", noise[start : start + 150_000], target="digest"
                    )
                )
            result = StagePayload(message.request_id, message.data.request, data)
            self.outbox.put(OutgoingMessage(message.request_id, "result", result))


def chunks() -> Chunks:
    return Chunks()


class Digest(StreamSink):
    """The digest of what was streamed, beside the payload."""

    def __init__(self) -> None:
        super().__init__()
        self._digests: dict[str, Any] = {}

    def take(self, request_id: str, chunk: Any) -> None:
        self._digests.setdefault(request_id, hashlib.sha256()).update(np.asarray(chunk).data)

    def result(self, request_id: str, data: Any) -> dict[str, Any]:
        return {**data, "sha256": self._digests.pop(request_id).hexdigest()}


def digest() -> Digest:
    return Digest()


def broken() -> None:
    raise FileNotFoundError("no weights on this host")


def expected_digest(seed: int, mib: int) -> str:
    """What ``digest`` gives in the end."""
    numbers = np.random.default_rng(seed).integers(0, 256, mib << 20, dtype=np.uint8)
    return hashlib.sha256((~numbers).data).hexdigest()
