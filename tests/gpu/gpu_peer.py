"""A process that reads stream chunks as a stage would, told step by step what to do."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from sglang_omni.pipeline.relay_io import read_blob, read_payload, read_stream_chunk, send_stream_chunk
from sglang_omni.pipeline.stage.edges.cuda import CudaIpcEdge
from sglang_omni.pipeline.stage.edges.edge import Payload
from sglang_omni.pipeline.stage.edges.relayed import RelayedEdge
from sglang_omni.proto import OmniRequest, StagePayload, codec


class Peer:
    """The other process; each call is one step of its, whose result or error comes back."""

    def __init__(self, connection: Connection, process: Any) -> None:
        self.connection = connection
        self.process = process

    async def __call__(self, step: str, argument: Any = None) -> Any:
        self.connection.send((step, codec.pack(argument)))
        # Whatever this process has to give back is given back by its loop, so that must go on.
        answered, value = await asyncio.to_thread(self.connection.recv)
        if not answered:
            raise RuntimeError(value)
        return codec.unpack(value)


@contextmanager
def peer(**environment: str) -> Iterator[Peer]:
    """A peer with ``environment`` over this process's own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    saved = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        process.start()
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    theirs.close()
    try:
        yield Peer(ours, process)
    finally:
        process.kill()
        process.join()


async def payload(relay: Any, data: Any) -> Any:
    """What announces a payload ``data`` to a stage on the same GPU."""
    sent: list[Any] = []

    class Wire:
        async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
            sent.append(message.shm_metadata)

    async def endpoint_of(target: str) -> str:
        return ""

    def watch(*_: Any) -> None:
        raise AssertionError("a relay that lends has no put to wait for")

    edge = RelayedEdge("first", "next", lambda target: relay, Wire(), endpoint_of, watch)
    item = Payload("r", "first", StagePayload("r", OmniRequest("hi"), data))
    await CudaIpcEdge("next", lambda target: relay, edge).send(item)
    return sent[0]


async def chunk(relay: Any, data: Any, metadata: dict[str, Any] | None = None) -> Any:
    """What ``send_stream_chunk`` announces for a stage on the same GPU."""
    sent: list[Any] = []

    class Wire:
        async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
            sent.append(message.shm_metadata)

    await send_stream_chunk(
        relay,
        Wire(),
        request_id="r",
        data=data,
        target_stage="next",
        target_endpoint="",
        from_stage="first",
        chunk_id=0,
        metadata=metadata,
        same_gpu_targets={"next"},
    )
    return sent[0]


def _serve(connection: Connection) -> None:
    steps = _Steps()
    while True:
        step, argument = connection.recv()
        try:
            value = asyncio.run(getattr(steps, step)(codec.unpack(argument)))
            connection.send((True, codec.pack(value)))
        except Exception as error:  # noqa: BLE001  the test process shows it
            connection.send((False, f"{type(error).__name__}: {error}"))


class _Steps:
    """What the peer can be asked for. It keeps what it read until it is told to drop it."""

    def __init__(self) -> None:
        import torch

        from sglang_omni.relay.shm.relay import ShmRelay

        self.torch = torch
        self.relay = ShmRelay("peer")
        self.data: Any = None
        self.sent: Any = None

    async def read_chunk(self, wire: Any) -> dict[str, Any]:
        """Reads a chunk that is a tensor."""
        self.data, _ = await read_stream_chunk(self.relay, "r", wire)
        return self._report(self.data)

    async def read_chunk_of_several(self, wire: Any) -> dict[str, Any]:
        """Reads a chunk ``{"a": tensor, "b": tensor, "cpu": tensor}`` with tensors in its metadata."""
        self.data, metadata = await read_stream_chunk(self.relay, "r", wire)
        self.data = {**self.data, **metadata}
        return {name: self._report(tensor) for name, tensor in self.data.items()}

    async def read_payload(self, wire: Any) -> dict[str, Any]:
        """Reads a payload ``{"rows": tensor, "levels": [tensor]}``."""
        self.data = (await read_payload(self.relay, "r", wire)).data
        return {"rows": self._report(self.data["rows"]), "level": self._report(self.data["levels"][0])}

    async def look(self, _: None) -> dict[str, Any]:
        return self._report(self.data)

    async def write_one(self, _: None) -> None:
        self.data[0] = 1
        self.torch.cuda.synchronize()

    async def drop(self, _: None) -> None:
        self.data = None

    async def read_to_gpu(self, metadata: Any) -> dict[str, Any]:
        """Reads a blob that is a tensor, and moves it to the GPU as a scheduler would."""
        self.torch.cuda.init()
        view = await read_blob(self.relay, "r", metadata)
        moved = view.to("cuda", non_blocking=True)
        return {**self._report(moved), "was_pinned": view.is_pinned()}

    async def queue_copy_to_gpu(self, metadata: Any) -> None:
        """As ``read_to_gpu``, behind half a second of other work, and without waiting for it."""
        self.torch.cuda.init()
        view = await read_blob(self.relay, "r", metadata)
        self.torch.cuda._sleep(1_000_000_000)
        self.data = view.to("cuda", non_blocking=True)

    async def lend_from_expandable_segments(self, _: None) -> dict[str, Any]:
        from sglang_omni.relay.shm.relay import ShmRelay

        sender = ShmRelay("sender")
        wire = await chunk(sender, self.torch.arange(10.0, device="cuda"))
        data, _ = await read_stream_chunk(self.relay, "r", wire)
        report = {**self._report(data), "lent": "loan" in wire}
        sender.close()
        return report

    def _report(self, tensor: Any) -> dict[str, Any]:
        return {
            "device": str(tensor.device),
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "values": tensor.cpu().contiguous().flatten().view(self.torch.uint8).numpy().tobytes(),
        }
