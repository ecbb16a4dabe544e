"""Stages for the tests of Ray, which tell where they run. The same in processes of this host."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from process_factories import StreamSink, WordSource

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.ranks import RankGroup

logger = logging.getLogger(__name__)

CHUNKS = 5


def here() -> dict[str, Any]:
    """The process this is, and under Ray its node and its actor."""
    place: dict[str, Any] = {"pid": os.getpid()}
    if "ray" in sys.modules:
        context = sys.modules["ray"].get_runtime_context()
        place |= {"node": context.get_node_id(), "actor": context.get_actor_id()}
    return place


def visit(name: str, folder: str = "") -> Callable[[StagePayload], dict[str, Any]]:
    """Says where ``name`` runs, and doubles the numbers that came, if any.

    A request ``{"hold": name}`` makes the stage create ``folder/name.held`` and wait for ``folder/name.go``.
    """

    def run(payload: StagePayload) -> dict[str, Any]:
        inputs = payload.request.inputs
        if inputs.get("hold") == name:
            Path(folder, f"{name}.held").touch()
            while not Path(folder, f"{name}.go").exists():
                time.sleep(0.01)
        if "log" in inputs:
            logger.warning("stage %s says %s", name, inputs["log"])
        data = {"seen": {**payload.data.get("seen", {}), name: here()}}
        if "numbers" in payload.data:
            data["numbers"] = payload.data["numbers"] * 2
        return data

    return run


class Speaker(WordSource):
    """A scheduler that gives a request's numbers, and streams as many bytes of them in chunks."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            payload = message.data
            numbers = np.random.default_rng(7).random(payload.request.inputs["count"])
            for chunk in np.array_split(numbers, CHUNKS):
                self.outbox.put(OutgoingMessage(message.request_id, "stream", chunk))
            payload.data = {"seen": {self.name: here()}, "numbers": numbers}
            self.outbox.put(OutgoingMessage(message.request_id, "result", payload))


class Listener(StreamSink):
    """Hashes the numbers that came in a payload and in a stream."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._chunks: dict[str, list[np.ndarray]] = {}

    def take(self, request_id: str, chunk: Any) -> None:
        self._chunks.setdefault(request_id, []).append(np.asarray(chunk))

    def result(self, request_id: str, data: Any) -> dict[str, Any]:
        return {
            "seen": {**data["seen"], self.name: here()},
            "payload": digest(data["numbers"]),
            "stream": [digest(chunk) for chunk in self._chunks.pop(request_id)],
        }


def digest(numbers: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()


class Rank(Speaker):
    """A scheduler that is one of several ranks, and leaves in ``folder`` where it runs."""

    def __init__(self, name: str, rank: int, port: int | None, folder: str) -> None:
        super().__init__(name)
        place = Path(folder, f"rank{rank}.json")
        # Whoever reads it finds this or what was there before.
        written = place.with_suffix(".new")
        written.write_text(json.dumps({**here(), "port": port}))
        written.replace(place)

    def join_ranks(self, ranks: RankGroup) -> None:
        self._ranks = ranks

    def start(self) -> None:
        if not self._ranks.leads:
            self._ranks.receive()  # of the end
            return
        while (message := self.inbox.get()) is not None:
            payload = message.data
            payload.data = {"seen": {self.name: here()}}
            self.outbox.put(OutgoingMessage(message.request_id, "result", payload))
        self._ranks.send([])


def rank(name: str, tp_rank: int, tp_size: int, nccl_port: int | None, folder: str) -> Rank:
    return Rank(name, tp_rank, nccl_port, folder)


def speaker(name: str) -> Speaker:
    return Speaker(name)


def listener(name: str) -> Listener:
    return Listener(name)


def broken() -> None:
    raise FileNotFoundError("no weights in /nowhere")
