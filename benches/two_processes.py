"""One way between two processes: from before the write to when the reader has the tensor.

Shared by ``data_plane.py`` and ``peer_data_plane.py``, which run in different environments: whatever
is measured comes as a ``Carrier``, so both are measured by the same loop. Both processes read
CLOCK_MONOTONIC, which is one clock for the whole machine.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import statistics
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
from measure import timed

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4096
# Payload sizes of the scaling plot.
SCALING = [KIB << (2 * step) for step in range(11)]
# First byte of a frame: only look at the tensor, or read a byte of each of its pages.
LOOK, TOUCH = b"l", b"t"
_END = "end"


class Carrier(Protocol):
    """What is measured: writes a payload, announces it by a message, and reads what a message announces."""

    async def write(self, payload: Any) -> Any:
        """The control message that announces the payload."""

    async def read(self, message: Any) -> Any:
        """The tensor of a payload ``{"tensor": ...}``."""

    async def settle(self) -> None:
        """The reader is done with the last payload."""

    def payload(self, request_id: str, tensors: Any) -> Any: ...
    def encode(self, message: Any) -> bytes: ...
    def decode(self, frame: bytes) -> Any: ...
    def plane(self, name: str, folder: str) -> Any:
        """A StageControlPlane with sockets in ``folder``."""


def rounds_for(nbytes: int) -> int:
    """More rounds for what is short, at most a few seconds for any size."""
    return max(9, min(400, (4 << 30) // nbytes))


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


async def medians(
    cases: Mapping[str, Callable[[], Awaitable[float]]], rounds: int, warmup: int = 3
) -> dict[str, float]:
    """Median of the seconds each case reports. Rounds go A B A B ..., so a drift of the machine meets all."""
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(warmup + rounds):
        for name, case in cases.items():
            seconds = await case()
            if number >= warmup:
                samples[name].append(seconds)
    return {name: statistics.median(values) for name, values in samples.items()}


def copies(source: Any) -> dict[str, Callable[[], Awaitable[float]]]:
    """The floors: a tensor copied into warm memory by whoever is quickest, and a look at every page.

    numpy asks for huge pages for the target, so this is the fastest copy one thread has here.
    """
    import torch

    array = source.numpy()
    into = np.ones(source.nbytes, np.uint8)
    target = torch.from_numpy(into)

    async def by_torch() -> float:
        return timed(lambda: target.copy_(source))

    async def by_numpy() -> float:
        return timed(lambda: np.copyto(into, array))

    async def by_libc() -> float:
        return timed(lambda: ctypes.memmove(into.ctypes.data, array.ctypes.data, array.nbytes))

    async def touched() -> float:
        return timed(lambda: touch(target))

    return {"torch copy_": by_torch, "np.copyto": by_numpy, "memmove": by_libc, "touch": touched}


class Line:
    """The sender's end of a line to a reader process."""

    def __init__(self, carrier: Carrier, connection: Connection, folder: str) -> None:
        self._carrier = carrier
        self._connection = connection
        self._folder = folder
        self._plane: Any = None

    async def start(self) -> None:
        self._plane = self._carrier.plane("writer", self._folder)
        await self._plane.start()
        self._connection.recv_bytes()  # the reader has imported everything

    async def pipe(self, payload: Any, how: bytes = LOOK) -> tuple[float, float]:
        """Seconds of the write, and one way: write, message through a pipe, read."""
        began = time.monotonic()
        message = await self._carrier.write(payload)
        wrote = time.monotonic()
        self._connection.send_bytes(how + self._carrier.encode(message))
        return wrote - began, await self._arrival() - began

    async def plane(self, payload: Any) -> float:
        """Seconds one way: write, message through the control plane's sockets, read."""
        began = time.monotonic()
        message = await self._carrier.write(payload)
        await self._plane.send_to_stage("reader", f"ipc://{self._folder}/reader", message)
        return await self._arrival() - began

    async def wake(self) -> float:
        """Seconds until the reader sees 200 bytes in the pipe: nothing can be quicker."""
        began = time.monotonic()
        self._connection.send_bytes(b"w" * 200)
        return await self._arrival(settle=False) - began

    async def use_plane(self) -> None:
        """From now on the reader listens to the control plane."""
        self._connection.send_bytes(b"")
        self._connection.recv_bytes()

    async def _arrival(self, settle: bool = True) -> float:
        (arrived,) = struct.unpack("d", self._connection.recv_bytes())
        if settle:
            await self._carrier.settle()
        return float(arrived)

    async def end(self, payload: Any) -> None:
        payload.request_id = _END
        await self.plane(payload)
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

    def arrived() -> None:
        connection.send_bytes(struct.pack("d", time.monotonic()))

    connection.send_bytes(b"ready")
    while frame := connection.recv_bytes():
        how, frame = frame[:1], frame[1:]
        if how in (LOOK, TOUCH):
            tensor = await carrier.read(carrier.decode(frame))
            if how == TOUCH:
                touch(tensor)
            else:
                tensor[-1].item()
            when = struct.pack("d", time.monotonic())
            del tensor  # before the answer: the writer finds its room again
            connection.send_bytes(when)
        else:
            arrived()
    connection.send_bytes(b"ready")
    while True:
        message = await plane.recv()
        tensor = await carrier.read(message)
        tensor[-1].item()
        del tensor
        arrived()
        if message.request_id == _END:
            plane.close()
            return
