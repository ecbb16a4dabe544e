"""Two processes with a relay each, for what every backend must do: this one, and a peer that obeys orders."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
import traceback
from functools import cache
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
from waiting import PATIENCE

from sglang_omni.pipeline import relay_io
from sglang_omni.relay import create_relay
from sglang_omni.relay.shm import relay as shm

if TYPE_CHECKING:
    import pytest

BACKENDS = ("shm", "nixl", "mooncake", "nccl")
# Where reading from a peer that is gone or stopped fails. Through shared memory nothing could: what is mapped
# stays readable.
NETWORKED = BACKENDS[1:]
# An edge's credit: SLOT_MB * CREDITS.
SLOT_MB, CREDITS = 2, 2
MIB = 1 << 20


def make_relay(backend: str, name: str, device: str = "cpu", **options: Any) -> Any:
    """A relay whose edges may have 4 MiB under way."""
    return create_relay(
        backend, engine_id=name, slot_size_mb=SLOT_MB, credits=CREDITS, device=device, **options
    )


@cache
def require(backend: str) -> None:
    """Skip where a backend's engine is not installed, but not in `make test` and CI, where all must be."""
    import pytest

    try:
        make_relay(backend, "probe").close()
    except ImportError as error:
        if "CI" in os.environ or "SGLANG_OMNI_TEST_ALL" in os.environ:
            raise
        pytest.skip(str(error))


def deadlines(monkeypatch: pytest.MonkeyPatch, backend: str, *, wait: float, keep: float) -> dict[str, float]:
    """Options of a relay that waits, and keeps what is unread, for so many seconds."""
    if backend != "shm":
        return {"timeout_s": wait, "keep_s": keep}
    # Through shared memory nothing is slow, so nobody chooses them.
    monkeypatch.setattr(shm, "_WAIT_SECONDS", wait)
    monkeypatch.setattr(shm, "_KEEP_SECONDS", keep)
    return {}


# Arrays and not tensors: most of what a peer takes to start is importing torch.
def block(value: int, nbytes: int = MIB) -> np.ndarray:
    """So many bytes of a value."""
    return np.full(nbytes, value, np.uint8)


def pattern(seed: int, nbytes: int) -> np.ndarray:
    """Random bytes, the same for the same seed."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


class _Servant:
    """Obeys what a ``Peer`` is asked, in the other process."""

    def __init__(self, backend: str, options: dict[str, Any]) -> None:
        self.relay = make_relay(backend, "peer", **options)
        self.puts: list[Any] = []
        self.kept: list[Any] = []
        self.reading: asyncio.Task[Any] | None = None

    async def write(self, key: str, obj: Any, target: str | None = None) -> Any:
        metadata, put = await relay_io.write_blob(self.relay, key, obj, target=target)
        self.puts.append(put)
        return metadata

    async def put(self, seed: int, nbytes: int) -> Any:
        import torch

        put = await self.relay.put_async(torch.from_numpy(pattern(seed, nbytes)), request_id="put")
        self.puts.append(put)
        return put.metadata

    async def read(self, key: str, metadata: Any) -> Any:
        return (await relay_io.read_blob(self.relay, key, metadata)).copy()

    async def read_sum(self, key: str, metadata: Any) -> int:
        return int((await relay_io.read_blob(self.relay, key, metadata)).sum(dtype=np.int64))

    async def keep(self, key: str, metadata: Any) -> int:
        """Read, and hold what was read until ``drop``."""
        self.kept.append(await relay_io.read_blob(self.relay, key, metadata))
        return int(self.kept[-1].sum(dtype=np.int64))

    async def drop(self) -> None:
        self.kept.clear()

    async def read_sums(self, key: str, many: list[Any]) -> list[int]:
        return list(await asyncio.gather(*(self.read_sum(key, metadata) for metadata in many)))

    async def begin_read(self, key: str, metadata: Any) -> None:
        self.reading = asyncio.create_task(self.read_sum(key, metadata))
        await asyncio.sleep(0)

    async def cleanup(self, key: str) -> None:
        self.relay.cleanup(key)

    async def complete(self) -> None:
        await asyncio.gather(*(put.wait_for_completion(PATIENCE) for put in self.puts))
        self.puts.clear()

    async def usage(self) -> dict[str, int]:
        gc.collect()
        return self.relay.usage()

    async def spare_files(self, count: int) -> int:
        """Leave so many files to open; returns what the soft limit of open files was."""
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
        for descriptor in opened:
            os.close(descriptor)
        return await self.limit_files(max(opened) + 1)

    async def limit_files(self, limit: int) -> int:
        """Set the soft limit of open files; returns what it was."""
        before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return before

    async def close(self) -> None:
        self.relay.close()

    async def stop_in(self, where: str) -> None:
        """Stop, as by SIGSTOP, when a function is called the next time: ``module:Class.name``."""
        module, path = where.split(":")
        owner_name, name = path.split(".")
        owner = getattr(importlib.import_module(module), owner_name)
        function = getattr(owner, name)

        def stop(*args: Any) -> Any:
            # Another thread, which a signal to the process may go to, would let this one go on for a while.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            return function(*args)

        setattr(owner, name, stop)

    async def exit(self) -> None:
        """Leave with whatever is under way."""
        sys.exit(0)


def _enter(namespace: str) -> None:
    libc, clone_newnet = ctypes.CDLL(None, use_errno=True), 0x40000000
    with open(namespace) as file:
        if libc.setns(file.fileno(), clone_newnet) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def _serve(connection: Connection, backend: str, options: dict[str, Any], namespace: str | None) -> None:
    logging.basicConfig(level=logging.WARNING)
    if namespace is not None:
        _enter(namespace)
    servant = _Servant(backend, options)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                order, *arguments = await loop.run_in_executor(None, connection.recv)
            except (EOFError, ConnectionResetError):
                return
            try:
                answer = ("ok", await getattr(servant, order)(*arguments))
            except Exception as error:  # noqa: BLE001  whoever gave the order gets it
                answer = ("error", type(error).__name__, f"{error}\n{traceback.format_exc()}")
            connection.send(answer)

    asyncio.run(serve())
    servant.relay.close()


class PeerError(Exception):
    """An order failed in the peer. ``kind`` is the name of what it raised."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Peer:
    """Another process with a relay, and the orders of ``_Servant`` as ``await peer("order", ...)``.

    Args:
        namespace: The file of the network namespace it is to be in.
        options: Its relay's.
    """

    def __init__(self, backend: str, *, namespace: str | None = None, **options: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, backend, options, namespace), daemon=True)
        self.process.start()
        there.close()

    async def __call__(self, *order: Any) -> Any:
        self.send(*order)
        return await self.answer()

    def send(self, *order: Any) -> None:
        self._here.send(order)

    async def answer(self) -> Any:
        if not await asyncio.to_thread(self._here.poll, PATIENCE):
            raise TimeoutError("the peer does not answer")
        match self._here.recv():
            case ("ok", value):
                return value
            case (_, kind, text):
                raise PeerError(kind, text)

    def stop(self) -> None:
        """Returns when it has, with all of its threads."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def close(self) -> int | None:
        """End it; its exit status."""
        self._here.close()
        self.go_on()
        self.process.join(PATIENCE)
        return self.process.exitcode
