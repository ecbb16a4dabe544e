"""One way between two processes: from before the write to when the reader has the tensor.

Shared by ``data_plane.py`` and ``peer_data_plane.py``, which run in different environments: whatever
is measured comes as a ``Carrier``, so both are measured by the same loop. Both processes read
CLOCK_MONOTONIC, which is one clock for the whole machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any, Protocol

from measure import KIB, Samples

PAGE = 4096
TENSORS, TENSOR_BYTES = 200, 64 * KIB
# First byte of a frame: only look at the tensor, or read a byte of each of its pages.
LOOK, TOUCH = b"l", b"t"
_END = "end"


class Carrier(Protocol):
    """What is measured: writes a payload, announces it by a message, and reads what a message announces."""

    async def write(self, payload: Any) -> Any:
        """The control message that announces the payload."""

    async def read(self, message: Any) -> Any:
        """The payload's data."""

    async def settle(self) -> None:
        """The reader is done with the last payload."""

    def payload(self, request_id: str, data: Any) -> Any: ...
    def encode(self, message: Any) -> bytes: ...
    def decode(self, frame: bytes) -> Any: ...
    def plane(self, name: str, folder: str) -> Any:
        """A StageControlPlane with sockets in ``folder``."""


def touch(tensor: Any) -> int:
    """Reads one byte of every page."""
    return int(tensor.numpy()[::PAGE].sum())


def shapes(tensors: list[Any], pair: Callable[..., Any]) -> dict[str, Any]:
    """The same tensors in dicts and lists, and in instances of the dataclass ``pair``."""
    twos = [tensors[i : i + 2] for i in range(0, len(tensors), 2)]
    nested = {f"layer {i}": {"pair": two, "index": i} for i, two in enumerate(twos)}
    return {
        "dicts and lists": nested,
        "dataclasses": {"pairs": [pair(*two, names=["k", "v"]) for two in twos]},
    }


class Line:
    """The sender's end of a line to a reader process. Payloads are ``{"tensor": ...}``."""

    def __init__(self, carrier: Carrier, connection: Connection, folder: str) -> None:
        self._carrier = carrier
        self._connection = connection
        self._folder = folder
        self._plane: Any = None

    async def start(self) -> None:
        self._plane = self._carrier.plane("writer", self._folder)
        await self._plane.start()
        await self._receive()  # the reader has imported everything

    async def pipe(self, payload: Any, count: int, how: bytes = LOOK) -> Samples:
        """The message goes through a pipe. "relay" is the write and the read without the way between them."""
        samples: Samples = {"write": [], "relay": [], "one way": []}
        for _ in range(count):
            began = time.monotonic()
            message = await self._carrier.write(payload)
            wrote = time.monotonic()
            self._connection.send_bytes(how + self._carrier.encode(message))
            read_began, arrived = await self._arrival()
            samples["write"].append(wrote - began)
            samples["relay"].append(wrote - began + arrived - read_began)
            samples["one way"].append(arrived - began)
        return samples

    async def plane(self, payload: Any, count: int) -> Samples:
        """The message goes through the control plane's sockets."""
        samples = []
        for _ in range(count):
            began = time.monotonic()
            message = await self._carrier.write(payload)
            await self._plane.send_to_stage("reader", f"ipc://{self._folder}/reader", message)
            samples.append((await self._arrival())[1] - began)
        return {"control plane": samples}

    async def wake(self, count: int) -> Samples:
        """200 bytes through the pipe: nothing can be quicker."""
        samples = []
        for _ in range(count):
            began = time.monotonic()
            self._connection.send_bytes(b"w" * 200)
            samples.append((await self._arrival(settle=False))[1] - began)
        return {"wake": samples}

    async def use_plane(self) -> None:
        """From now on the reader listens to the control plane."""
        self._connection.send_bytes(b"")
        await self._receive()

    async def _arrival(self, settle: bool = True) -> tuple[float, float]:
        read_began, arrived = struct.unpack("dd", await self._receive())
        if settle:
            await self._carrier.settle()
        return read_began, arrived

    async def _receive(self) -> bytes:
        # Not blocking the loop: what a send has left to it must go out.
        if not self._connection.poll():
            loop, ready = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(self._connection.fileno(), ready.set)
            await ready.wait()
            loop.remove_reader(self._connection.fileno())
        return self._connection.recv_bytes()

    async def end(self, payload: Any) -> None:
        payload.request_id = _END
        await self.plane(payload, 1)
        self._plane.close()


@asynccontextmanager
async def line(make_carrier: Callable[[], Carrier], carrier: Carrier) -> AsyncIterator[Line]:
    """A reader process with a carrier of its own, and the line to it. Ends with ``Line.end``."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        process = context.Process(target=_reader, args=(make_carrier, theirs, folder), daemon=True)
        process.start()
        theirs.close()
        try:
            started = Line(carrier, ours, folder)
            await started.start()
            yield started
        finally:
            process.join(5)
            if process.is_alive():
                process.kill()


def one_thread() -> None:
    """torch copies in one thread: memory is the limit, and idle threads that spin disturb the neighbours."""
    import torch

    torch.set_num_threads(1)


def _reader(make_carrier: Callable[[], Carrier], connection: Connection, folder: str) -> None:
    one_thread()
    asyncio.run(_read(make_carrier(), connection, folder))


async def _read(carrier: Carrier, connection: Connection, folder: str) -> None:
    plane = carrier.plane("reader", folder)
    await plane.start()
    connection.send_bytes(b"ready")
    while frame := connection.recv_bytes():
        how, frame = frame[:1], frame[1:]
        began = time.monotonic()
        if how in (LOOK, TOUCH):
            tensor = (await carrier.read(carrier.decode(frame)))["tensor"]
            if how == TOUCH:
                touch(tensor)
            else:
                tensor[-1].item()
            arrived = time.monotonic()
            del tensor  # before the answer: the writer finds its room again
        else:
            arrived = began
        connection.send_bytes(struct.pack("dd", began, arrived))
    connection.send_bytes(b"ready")
    while True:
        message = await plane.recv()
        began = time.monotonic()
        tensor = (await carrier.read(message))["tensor"]
        tensor[-1].item()
        arrived = time.monotonic()
        del tensor
        connection.send_bytes(struct.pack("dd", began, arrived))
        if message.request_id == _END:
            plane.close()
            return
