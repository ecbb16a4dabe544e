"""Stages that say how what they received came. Imported by worker processes, so it imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage

# Neither fits into a control message.
PAYLOAD_BYTES = 256 << 10
CHUNK_BYTES = 160 << 10
CHUNKS = 3
STREAMED = ("near", "left_one", "right_one")


def block(seed: int, nbytes: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def way(array: np.ndarray) -> str:
    """Whose memory it is: ``shared`` with a sender, ``read`` into by a relay, or the array's ``own``."""
    root: Any = array
    while getattr(root, "base", None) is not None:
        root = root.base
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(number, 16) for number in line.split()[0].split("-"))
        if low <= address < high and "memfd:sglang-omni" in line:
            return "shared"
    return "own" if isinstance(root, np.ndarray) else "read"


class _Stage:
    """A scheduler that takes one message at a time."""

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage | None] = Queue()
        self.outbox: Queue[OutgoingMessage] = Queue()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            self.take(message)

    def take(self, message: IncomingMessage) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        pass


class Source(_Stage):
    """Streams chunks to those of the request's targets that take a stream, then gives the payload to all."""

    def take(self, message: IncomingMessage) -> None:
        request_id, request = message.request_id, message.data.request
        for number in range(CHUNKS):
            chunk = block(number + 1, CHUNK_BYTES)
            for target in ended(request_id, message.data):
                out = OutgoingMessage(request_id, "stream", chunk, target, {"address": chunk.ctypes.data})
                self.outbox.put(out)
        data = block(0, PAYLOAD_BYTES)
        payload = StagePayload(request_id, request, {"block": data, "address": data.ctypes.data})
        self.outbox.put(OutgoingMessage(request_id, "result", payload))


class Witness(_Stage):
    """Says how a request's payload and chunks came, unless the request tells this stage to keep them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._chunks: dict[str, list[Any]] = {}
        self._payloads: dict[str, StagePayload] = {}
        self._ended: set[str] = set()

    def take(self, message: IncomingMessage) -> None:
        request_id = message.request_id
        if message.type == "stream_chunk":
            self._chunks.setdefault(request_id, []).append(message.data)
            return
        if message.type == "stream_done":
            self._ended.add(request_id)
        else:
            self._payloads[request_id] = message.data
        payload = self._payloads.get(request_id)
        is_whole = payload is not None and (self._name not in STREAMED or request_id in self._ended)
        if not is_whole or payload.request.params.get("keep") == self._name:
            return
        chunks = self._chunks.pop(request_id, [])
        self._payloads.pop(request_id, None)
        self._ended.discard(request_id)
        # What goes on is a copy: what it was made of can be given back.
        payload.data = {
            "block": payload.data["block"].copy(),
            "way": way(payload.data["block"]),
            "same": payload.data["address"] == payload.data["block"].ctypes.data,
            "chunk_ways": [way(item.data) for item in chunks],
            "same_chunks": [item.metadata["address"] == item.data.ctypes.data for item in chunks],
            "chunks_right": [
                bool((item.data == block(number + 1, CHUNK_BYTES)).all())
                for number, item in enumerate(chunks)
            ],
        }
        chunks.clear()
        self.outbox.put(OutgoingMessage(request_id, "result", payload))

    def abort(self, request_id: str) -> None:
        # In the loop's thread, while `take` waits in the queue.
        self._chunks.pop(request_id, None)
        self._payloads.pop(request_id, None)
        self._ended.discard(request_id)


def source() -> Source:
    return Source()


def witness(name: str) -> Witness:
    return Witness(name)


def report() -> Any:
    """The merged reports, each with how its own block came and whether it is what was sent."""

    def run(payload: StagePayload) -> Any:
        right = block(0, PAYLOAD_BYTES)
        return {
            name: {
                **{key: value for key, value in data.items() if key != "block"},
                "back": way(data["block"]),
                "right": bool((data["block"] == right).all()),
            }
            for name, data in payload.data.items()
        }

    return run


def merge(payloads: dict[str, StagePayload]) -> StagePayload:
    first = next(iter(payloads.values()))
    return StagePayload(first.request_id, first.request, {name: p.data for name, p in payloads.items()})


def route(request_id: str, output: StagePayload) -> list[str]:
    return output.request.params["route"]


def expected(request_id: str, from_stage: str, payload: StagePayload) -> list[str]:
    return payload.request.params["route"]


def ended(request_id: str, output: StagePayload) -> list[str]:
    return [target for target in output.request.params["route"] if target in STREAMED]


def own_container(payload: StagePayload) -> StagePayload:
    return StagePayload(payload.request_id, payload.request, dict(payload.data))
