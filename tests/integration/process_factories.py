"""Stages for the tests of worker processes. Imported by those processes, so it imports nothing heavy."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage

logger = logging.getLogger(__name__)


def trace(name: str, folder: str = "") -> Callable[[StagePayload], dict]:
    """Adds ``name`` and its process id to the payload; holds requests that ask for it until told to go on.

    A request ``{"hold": name}`` makes the stage create ``folder/name.held`` and wait for ``folder/name.go``.
    A process that starts while there is ``folder/name.shut`` waits until there is not.
    """
    while Path(folder, f"{name}.shut").exists():
        time.sleep(0.01)

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


def describe_process() -> Callable[[StagePayload], list]:
    """Adds what it finds its process to be; ``imported_by`` is the process that imported a certain module."""

    def run(payload: StagePayload) -> list:
        import imported_once
        import numpy as np

        mine = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "imported_by": imported_once.PID,
            "environment": dict(os.environ),
            "drawn": float(np.random.random()),
            "files": len(os.listdir("/proc/self/fd")),
        }
        return [*(payload.data if isinstance(payload.data, list) else []), mine]

    return run


def forking(folder: str) -> Callable[[StagePayload], int]:
    """Its process id. If the request says so, it forks a child, which lives until ``grown`` is there."""

    def run(payload: StagePayload) -> int:
        if payload.request.inputs.get("fork") and not os.fork():
            Path(folder, "child").write_text(str(os.getpid()))
            while not Path(folder, "grown").exists():
                time.sleep(0.02)
            os._exit(0)
        return os.getpid()

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


def leaves() -> None:
    sys.exit("gone before it began")


class Crashing:
    """A scheduler whose ``start`` raises at the first request."""

    def __init__(self) -> None:
        self.inbox: Queue = Queue()
        self.outbox: Queue = Queue()
        self._stopped = False

    def start(self) -> None:
        self.inbox.get()
        if not self._stopped:
            raise MemoryError("out of KV cache")

    def stop(self) -> None:
        self._stopped = True
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        pass


def crashing() -> Crashing:
    return Crashing()


class WordSource:
    """A scheduler that streams a request's words to where its stage streams to, then gives their number."""

    def __init__(self) -> None:
        self.inbox: Queue = Queue()
        self.outbox: Queue = Queue()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            words = message.data.data["raw_inputs"].split()
            for word in words:
                self.outbox.put(OutgoingMessage(message.request_id, "stream", word))
            result = StagePayload(message.request_id, message.data.request, len(words))
            self.outbox.put(OutgoingMessage(message.request_id, "result", result))

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        pass


def word_source(gpu_id: int | None = None) -> WordSource:
    return WordSource()


class StreamSink(WordSource):
    """A scheduler that answers with ``result`` when both the payload and the stream's end are there."""

    def start(self) -> None:
        payloads: dict[str, StagePayload] = {}
        ended: set[str] = set()
        while (message := self.inbox.get()) is not None:
            request_id = message.request_id
            if message.type == "stream_chunk":
                self.take(request_id, message.data.data)
            elif message.type == "stream_done":
                ended.add(request_id)
            else:
                payloads[request_id] = message.data
            if request_id in ended and request_id in payloads:
                payload = payloads.pop(request_id)
                payload.data = self.result(request_id, payload.data)
                self.outbox.put(OutgoingMessage(request_id, "result", payload))

    def take(self, request_id: str, chunk: Any) -> None:
        raise NotImplementedError

    def result(self, request_id: str, data: Any) -> dict[str, Any]:
        raise NotImplementedError


class WordSink(StreamSink):
    """Joins the words."""

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[str, list[str]] = {}

    def take(self, request_id: str, chunk: Any) -> None:
        self._words.setdefault(request_id, []).append(chunk)

    def result(self, request_id: str, data: Any) -> dict[str, Any]:
        return {"count": data, "words": "+".join(self._words.pop(request_id))}


def word_sink(gpu_id: int | None = None) -> WordSink:
    return WordSink()


def merge(payloads: dict[str, StagePayload]) -> StagePayload:
    first = next(iter(payloads.values()))
    return StagePayload(
        first.request_id, first.request, {name: p.data for name, p in sorted(payloads.items())}
    )


def give(value: str) -> Callable[[StagePayload], str]:
    return lambda payload: value


def collect() -> Callable[[StagePayload], object]:
    return lambda payload: payload.data


def route_by_request(request_id: str, output: StagePayload) -> object:
    return output.request.params["route"]


def expected_by_request(request_id: str, from_stage: str, payload: StagePayload) -> list[str]:
    return payload.request.params["route"]


def terminals_by_request(request: OmniRequest) -> list[str] | None:
    return request.params.get("terminals")


def only_number(payload: StagePayload) -> StagePayload:
    return StagePayload(payload.request_id, payload.request, {"number": payload.data["number"]})


def ones() -> Callable[[StagePayload], object]:
    import numpy as np

    return lambda payload: {"ones": np.ones(payload.data["raw_inputs"])}


def twice() -> Callable[[StagePayload], object]:
    return lambda payload: {"ones": payload.data["ones"] * 2, "pid": os.getpid()}


def total() -> Callable[[StagePayload], object]:
    return lambda payload: {"total": float(payload.data["ones"].sum()), "pid": payload.data["pid"]}


def any_rank(**arguments: Any) -> None:
    """A factory that leaves it to others what it takes."""
    raise ValueError("rank {tp_rank} of {tp_size} was to be built".format(**arguments))


def rank_of_nothing(tp_rank: int, tp_size: int) -> Callable[[StagePayload], int]:
    """Takes what a rank is told, and makes nothing of it."""
    return lambda payload: tp_rank


def broken_rank(tp_rank: int, tp_size: int) -> None:
    """The last rank cannot start, and the others wait for it."""
    if tp_rank == tp_size - 1:
        raise FileNotFoundError("no weights for this rank")
    time.sleep(600)


def holds_the_lock(folder: str) -> Callable[[StagePayload], int]:
    """The first request makes a C call that lasts, and lets no other thread of the interpreter run."""

    def run(payload: StagePayload) -> int:
        if not Path(folder, "held").exists():
            Path(folder, "held").touch()
            ctypes.PyDLL(None).sleep(600)
        return os.getpid()

    return run


def broken_for_good(folder: str) -> Callable[[StagePayload], int]:
    """Fails every request from the one on that finds ``folder/sticky``, as with a GPU's sticky error."""
    broken = False

    def run(payload: StagePayload) -> int:
        nonlocal broken
        broken = broken or Path(folder, "sticky").exists()
        if broken:
            raise SystemError("the device is gone")
        return os.getpid()

    return run


def loses_its_gpu(name: str, folder: str) -> Callable[[StagePayload], dict]:
    """As ``trace``; a request ``{"lose": name}`` fails as if the GPU were lost to this process."""
    traced = trace(name, folder)

    def run(payload: StagePayload) -> dict:
        if payload.request.inputs.get("lose") == name:
            import torch

            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return traced(payload)

    return run
