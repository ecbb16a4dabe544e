"""Stages of a pipeline on one GPU. Imported by its processes."""

from __future__ import annotations

from queue import Queue
from typing import Any

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage


class Source:
    """Streams the rows of a matrix on the GPU and hands the whole of it on."""

    def __init__(self, gpu_id: int) -> None:
        self.gpu_id = gpu_id
        self.inbox: Queue[Any] = Queue()
        self.outbox: Queue[Any] = Queue()

    def start(self) -> None:
        import torch

        while (message := self.inbox.get()) is not None:
            rows, columns = message.data.data["raw_inputs"]
            matrix = torch.arange(rows * columns, device=f"cuda:{self.gpu_id}").view(rows, columns)
            for row in matrix:
                self.outbox.put(OutgoingMessage(message.request_id, "stream", {"row": row}))
            result = StagePayload(message.request_id, message.data.request, {"matrix": matrix})
            self.outbox.put(OutgoingMessage(message.request_id, "result", result))

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        pass


class Sink(Source):
    """Says where the rows and the matrix came to be and whether they agree."""

    def start(self) -> None:
        import torch

        rows: dict[str, list[Any]] = {}
        payloads: dict[str, StagePayload] = {}
        ended: set[str] = set()
        while (message := self.inbox.get()) is not None:
            request_id = message.request_id
            if message.type == "stream_chunk":
                rows.setdefault(request_id, []).append(message.data.data["row"])
            elif message.type == "stream_done":
                ended.add(request_id)
            else:
                payloads[request_id] = message.data
            if request_id in ended and request_id in payloads:
                payload, received = payloads.pop(request_id), rows.pop(request_id)
                matrix = payload.data["matrix"]
                stacked = torch.stack([row.to("cuda") for row in received])
                payload.data = {
                    "rows on": sorted({row.device.type for row in received}),
                    "matrix on": matrix.device.type,
                    "equal": torch.equal(stacked, matrix.to("cuda")),
                }
                self.outbox.put(OutgoingMessage(request_id, "result", payload))


def source(gpu_id: int) -> Source:
    return Source(gpu_id)


def sink(gpu_id: int) -> Sink:
    return Sink(gpu_id)
