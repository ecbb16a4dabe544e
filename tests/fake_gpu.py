"""A GPU made of host memory: what a machine without one can check of the code for those that have one."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from sglang_omni.pipeline.stage.edges import cuda as lending
from sglang_omni.relay.shm import cuda_ipc, cuda_mappings, device_copy, pinned
from sglang_omni.relay.shm.cuda_driver import CudaDriver, CudaError
from sglang_omni.relay.shm.cuda_mappings import CudaMappings

UUID = "0123-4567"
STREAM = 7


class FakeDriver:
    """The calls of ``CudaDriver``, recorded, on host memory.

    Attributes:
        refusal: When set, what ``page_lock`` and ``export_memory`` fail with.
        room: Bytes of every allocation, counted from the address asked for.
        unwritable: ``(start, end)`` of memory that this process may only read; ``page_lock`` refuses it...
        locks_read_only: ...unless this is true, and it is told.
        locked: ``(address, nbytes)`` locked now.
        opened: Addresses opened and not closed.
        num_opened: How often an allocation was opened.
        device: The device of the last context.

    As with the real one, each thread has a context of its own, and none at first.
    """

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.room = 1 << 20
        self.unwritable: list[tuple[int, int]] = []
        self.locks_read_only = False
        self.calls: list[str] = []
        self.locked: list[tuple[int, int]] = []
        self.opened: list[int] = []
        self.num_opened = 0
        self._of_thread = threading.local()

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        self.device = device
        contexts = self._contexts()
        contexts.append(device)
        try:
            yield
        finally:
            contexts.pop()

    def _contexts(self) -> list[int]:
        """Those that this thread has pushed."""
        if not hasattr(self._of_thread, "contexts"):
            self._of_thread.contexts = []
        return self._of_thread.contexts

    def _needs_context(self) -> None:
        if not self._contexts():
            raise CudaError("invalid device context (CUDA error 201)")

    def page_lock(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        self._called("page_lock")
        unwritable = any(start <= address < end for start, end in self.unwritable)
        if unwritable and not (read_only and self.locks_read_only):
            raise CudaError("cuMemHostRegister_v2: operation not supported (CUDA error 801)")
        assert not any(a < address + nbytes and address < a + n for a, n in self.locked), "locked twice"
        self.locked.append((address, nbytes))

    def page_unlock(self, address: int) -> None:
        self._needs_context()
        self.locked.remove(next(entry for entry in self.locked if entry[0] == address))

    def allocation(self, address: int) -> tuple[int, int]:
        self._needs_context()
        return address & ~63, self.room

    def allocation_number(self, address: int) -> int:
        self._needs_context()
        return 1

    def export_memory(self, start: int) -> bytes:
        self._called("export_memory")
        return start.to_bytes(8, "little").ljust(64, b"\0")

    def open_memory(self, handle: bytes) -> int:
        self._needs_context()
        self.num_opened += 1
        self.opened.append(int.from_bytes(handle[:8], "little"))
        return self.opened[-1]

    def close_memory(self, start: int) -> None:
        self._needs_context()
        self.opened.remove(start)

    def _called(self, name: str) -> None:
        self._needs_context()
        self.calls.append(name)
        if self.refusal is not None:
            raise CudaError(self.refusal)


class FakeEvent:
    made = 0

    def __init__(self, interprocess: bool = False) -> None:
        assert interprocess
        FakeEvent.made += 1
        self.recorded: list[Any] = []

    def record(self, stream: Any) -> None:
        self.recorded.append(stream)

    def ipc_handle(self) -> bytes:
        assert self.recorded, "of an event that nothing has recorded yet"
        return b"e" * 64

    @staticmethod
    def from_ipc_handle(device: Any, handle: bytes) -> bytes:
        return handle


class GpuTensor(torch.Tensor):
    """A tensor whose memory counts as a GPU's when a payload is packed."""

    is_cuda = property(lambda self: True)

    def cpu(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a copy by way of ordinary memory")


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(GpuTensor)


class FakeStream:
    """Notes what it is told to wait for, in the order of the copies that ``FakeGpu.log`` also holds."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def wait_stream(self, other: Any) -> None:
        self.log.append("after the current stream")

    def synchronize(self) -> None:
        self.log.append("synchronize")
        self.thread = threading.get_ident()


class FakeGpu:
    """Attributes: driver; waited, the events a stream was told to wait for; copies, the stream of copies."""

    def __init__(self) -> None:
        self.driver = FakeDriver()
        self.copies = FakeStream([])
        self.waited: list[bytes] = []
        self.synchronized = 0
        self.addresses: set[int] = set()

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Has this very tensor count as one on the GPU."""
        self.addresses.add(id(tensor))
        return tensor

    def synchronize(self, device: int) -> None:
        self.synchronized += 1


def install(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    FakeEvent.made = 0
    stream = SimpleNamespace(cuda_stream=STREAM, wait_event=gpu.waited.append)
    for name, fake in {
        "init": lambda: None,
        "device_count": lambda: 1,
        "get_device_properties": lambda device: SimpleNamespace(uuid=UUID),
        "current_stream": lambda device: stream,
        "Event": FakeEvent,
        "synchronize": gpu.synchronize,
        "Stream": lambda device: gpu.copies,
        "stream": lambda stream: nullcontext(),
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(cuda_ipc, "cuda_driver", lambda: gpu.driver)
    mappings = CudaMappings(cast(CudaDriver, gpu.driver), cuda_ipc._later)
    monkeypatch.setattr(cuda_ipc, "_mappings", lambda: mappings)
    monkeypatch.setattr(cuda_mappings, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(pinned, "cuda_driver", lambda: gpu.driver)
    monkeypatch.setattr(pinned, "_memory", pinned.PinnedMemory())
    monkeypatch.setattr(device_copy, "_streams", {})
    monkeypatch.setattr(cuda_ipc, "_device", lambda number: torch.device("cpu"))
    monkeypatch.setattr(cuda_ipc, "_as_tensor", _as_tensor)
    monkeypatch.setattr(lending, "is_cuda_in_use", lambda: True)
    monkeypatch.setattr(lending, "is_lendable", lambda value: id(value) in gpu.addresses)
    monkeypatch.setattr(lending, "_reported", set())
    for name in ("_devices", "_event"):
        monkeypatch.setattr(cuda_ipc, name, cache(getattr(cuda_ipc, name).__wrapped__))
    return gpu


def _as_tensor(memory: Any) -> torch.Tensor:
    interface = memory.__cuda_array_interface__
    view = (ctypes.c_uint8 * interface["shape"][0]).from_address(interface["data"][0])
    view.memory = memory
    return torch.frombuffer(view, dtype=torch.uint8)
