"""Stages for the tests of replicas. Imported by worker processes, so it imports nothing heavy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

from sglang_omni.config import StageConfig
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage

CHUNKS = 4


class _Scheduler:
    """Handles one message after the other."""

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage] = Queue()
        self.outbox: Queue[OutgoingMessage] = Queue()
        self.flushes = 0
        self.handled = 0

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            self.handle(message)
            self.handled += 1

    def stats(self) -> dict[str, float]:
        return {"num_handled": self.handled}

    def handle(self, message: IncomingMessage) -> None:
        raise NotImplementedError

    def emit(self, request_id: str, kind: Any, data: Any) -> None:
        self.outbox.put(OutgoingMessage(request_id, kind, data))

    def stop(self) -> None:
        self.inbox.put(None)  # type: ignore[arg-type]

    def abort(self, request_id: str) -> None:
        pass

    def flush_cache(self) -> None:
        self.flushes += 1


class Speaker(_Scheduler):
    """Streams numbers to where its stage streams to, then gives its process id."""

    def handle(self, message: IncomingMessage) -> None:
        payload = message.data
        for number in range(CHUNKS):
            self.emit(message.request_id, "stream", {"number": number, "pid": os.getpid()})
        result = StagePayload(message.request_id, payload.request, {**payload.data, "pid": os.getpid()})
        self.emit(message.request_id, "result", result)


class Listener(_Scheduler):
    """Answers once it has seen a request's payload and all of two streams; nothing else completes it.

    It streams to the caller while it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._payloads: dict[str, StagePayload] = {}
        self._heard: dict[str, dict[str, list[Any]]] = {}
        self._ended: dict[str, list[str]] = {}

    def handle(self, message: IncomingMessage) -> None:
        request_id = message.request_id
        if message.type == "new_request":
            self._payloads[request_id] = message.data
        elif message.type == "stream_chunk":
            item = message.data
            self._heard.setdefault(request_id, {}).setdefault(item.from_stage, []).append(item.data)
        else:
            self._ended.setdefault(request_id, []).append(message.data)
        if request_id in self._payloads and len(self._ended.get(request_id, ())) == 2:
            for number in range(CHUNKS):
                self.emit(request_id, "stream", {"number": number, "pid": os.getpid()})
            payload = self._payloads.pop(request_id)
            payload.data = {
                "merged": payload.data,
                "heard": self._heard.pop(request_id),
                "ended": sorted(self._ended.pop(request_id)),
                "pid": os.getpid(),
                "flushes": self.flushes,
            }
            self.emit(request_id, "result", payload)


def speaker() -> Speaker:
    return Speaker()


def listener() -> Listener:
    return Listener()


def splitter() -> Callable[[StagePayload], dict[str, Any]]:
    return lambda payload: {"split_by": os.getpid()}


def merge(payloads: dict[str, StagePayload]) -> StagePayload:
    first = next(iter(payloads.values()))
    return StagePayload(
        first.request_id, first.request, {name: p.data for name, p in sorted(payloads.items())}
    )


def sources(request_id: str, from_stage: str, payload: StagePayload) -> list[str]:
    return {"left": ["left", "right"], "right": ["right", "left"]}[from_stage]


def targets(request_id: str, output: StagePayload) -> list[str]:
    return ["left", "right"]


def project(payload: StagePayload) -> StagePayload:
    return StagePayload(payload.request_id, payload.request, {**payload.data, "projected": True})


def sleeper(seconds: float) -> Callable[[StagePayload], dict[str, Any]]:
    def run(payload: StagePayload) -> dict[str, Any]:
        time.sleep(seconds)
        return {"pid": os.getpid()}

    return run


def gated(path: str) -> Callable[[StagePayload], dict[str, Any]]:
    """One request after the other, each as soon as the file is there."""

    def run(payload: StagePayload) -> dict[str, Any]:
        while not os.path.exists(path):
            time.sleep(0.01)
        return {"pid": os.getpid()}

    return run


def stage_that_sleeps(name: str, seconds: float, **fields: Any) -> StageConfig:
    """The stage of a ``sleeper`` in a process of its own."""
    factory = "replica_factories.sleeper"
    return StageConfig(name=name, factory=factory, factory_args={"seconds": seconds}, process=name, **fields)
