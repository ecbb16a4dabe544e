"""Exports tensors of a GPU to another process on the same GPU, and imports them there, without a copy.

A description travels: which GPU, the handle by which the driver opens the allocation
elsewhere, and where in it the elements lie. It is plain data, checked field by field, and names
nothing to be called.

The memory stays the lender's. A ticket of its relay says how long: the borrower holds it until the
last tensor that shows the memory is gone and the GPU has finished with it, and it comes back too when
the borrower dies or never looks. torch's own way of sharing CUDA tensors counts in a file in /dev/shm
instead, which outlives a killed process, never hears of a dead borrower, and wraps a storage once
more each time a part of it is sent.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from sglang_omni.relay.shm.cuda_driver import IPC_HANDLE_BYTES, CudaError, cuda_driver
from sglang_omni.relay.shm.cuda_mappings import CudaMappings, OpenAllocation
from sglang_omni.relay.shm.gpu_returns import when_gpu_is_done

if TYPE_CHECKING:
    import torch

# With "0" nothing is lent, and tensors of a GPU travel through shared memory.
SWITCH = "SGLANG_OMNI_CUDA_IPC"
_MAX_DIMS = 64


class CannotLend(RuntimeError):
    """Tensors cannot be lent; the text says why. They can still be copied."""


# --- lending -----------------------------------------------------------------------------------


def is_lendable(value: Any) -> bool:
    """True if ``value`` is a tensor in the memory of this process's current GPU."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.is_cuda
        and value.layout is torch.strided
        and not value.is_quantized
        and value.get_device() == torch.cuda.current_device()
    )


def span_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first of a view to its last; 0 for a view without any."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


class CudaLender:
    """Describes tensors to other processes. One for each relay."""

    def __init__(self) -> None:
        self._events: dict[tuple[int, int], torch.cuda.Event] = {}

    def describe(self, tensors: Sequence[torch.Tensor]) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """What ``borrow`` needs, and the tensors whose memory must be kept for as long as it is lent.

        Args:
            tensors: ``is_lendable`` ones. The borrower sees what the current stream of the GPU has been
                given so far.

        Raises:
            CannotLend: The driver will not open their memory to other processes.
        """
        import torch

        if os.environ.get(SWITCH) == "0":
            raise CannotLend(f"{SWITCH}=0 is set")
        # The lent views must be what they show: these bits are the tensor's, not the memory's.
        plain = [tensor.detach().resolve_conj().resolve_neg() for tensor in tensors]
        device = plain[0].get_device()
        try:
            rows = self._rows(plain, device)
            event = self._record(device)
        except (CudaError, RuntimeError) as error:
            raise CannotLend(str(error)) from error
        described = {
            "device": _uuid(torch.cuda.get_device_properties(device)),
            "event": event,
            "tensors": rows,
        }
        return described, plain

    def _rows(self, tensors: Sequence[torch.Tensor], device: int) -> list[dict[str, Any]]:
        driver = cuda_driver()
        exported: dict[int, tuple[bytes, int]] = {}
        rows = []
        with driver.on(device):
            for tensor in tensors:
                row: dict[str, Any] = {
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": list(tensor.shape),
                    "stride": list(tensor.stride()),
                    "handle": None,
                    "number": 0,
                    "offset": 0,
                }
                if tensor.numel():
                    start, _ = driver.allocation(tensor.data_ptr())
                    if start not in exported:
                        exported[start] = driver.export_memory(start), driver.allocation_number(start)
                    handle, number = exported[start]
                    row |= {"handle": handle, "number": number, "offset": tensor.data_ptr() - start}
                rows.append(row)
        return rows

    def _record(self, device: int) -> bytes:
        """The handle of an event after everything that the current stream has been given.

        There is one for each stream, recorded again for each chunk: a borrower that looks late waits
        for a little more than it must, and never for less.
        """
        import torch

        stream = torch.cuda.current_stream(device)
        key = device, stream.cuda_stream
        event = self._events.get(key)
        if event is None:
            event = self._events[key] = torch.cuda.Event(interprocess=True)
        event.record(stream)
        handle: bytes = event.ipc_handle()
        return handle


# --- borrowing ---------------------------------------------------------------------------------


def borrow(described: Any, ticket: object) -> list[torch.Tensor]:
    """The tensors that ``describe`` was given, in the lender's memory. Read-only by contract.

    Work that the current stream of their GPU is given from now on sees them as they were lent.

    Args:
        described: What ``describe`` returned in the sender.
        ticket: Let go of when the last of the tensors is gone and the GPU has finished with them.

    Raises:
        ValueError: The description is malformed or does not fit the memory.
        CudaError: The GPU is not visible here, or the driver does not open the memory.
    """
    uuid, event, rows = _checked(described)
    import torch

    try:
        torch.cuda.init()
    except RuntimeError as error:
        raise CudaError(f"this process cannot use a GPU: {error}; {_advice()}") from error
    device = _devices().get(uuid)
    if device is None:
        raise CudaError(f"GPU {uuid} of the sender is not visible to this process; {_advice()}")
    try:
        _wait_for(device, event)
        return [_open(row, device, ticket) for row in rows]
    except CudaError as error:
        raise CudaError(f"{error}; {_advice()}") from error


def _advice() -> str:
    return f"set {SWITCH}=0 for tensors to travel through shared memory"


def _checked(described: Any) -> tuple[str, bytes, list[dict[str, Any]]]:
    match described:
        case {"device": str(uuid), "event": bytes(event), "tensors": list(rows)}:
            pass
        case _:
            raise ValueError(f"not a description of lent tensors: {described!r:.200}")
    if len(event) != IPC_HANDLE_BYTES:
        raise ValueError(f"an event's handle has {IPC_HANDLE_BYTES} bytes, not {len(event)}")
    return uuid, event, [_checked_row(row) for row in rows]


def _checked_row(row: Any) -> dict[str, Any]:
    match row:
        case {
            "dtype": str(name),
            "shape": list(shape),
            "stride": list(stride),
            "handle": (bytes() | None) as handle,
            "number": int(number),
            "offset": int(offset),
        }:
            pass
        case _:
            raise ValueError(f"not the description of a lent tensor: {row!r:.200}")
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown torch dtype {name!r}")
    sizes = [*shape, *stride]
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in sizes):
        raise ValueError(f"a lent tensor cannot have shape {shape} and stride {stride}")
    if len(shape) != len(stride) or len(shape) > _MAX_DIMS:
        raise ValueError(
            f"a lent tensor of {len(shape)} sizes and {len(stride)} strides, at most {_MAX_DIMS}"
        )
    if (handle is None) != (0 in shape):
        raise ValueError("a lent tensor has memory if it has elements, and only then")
    if handle is not None and len(handle) != IPC_HANDLE_BYTES:
        raise ValueError(f"the handle of memory has {IPC_HANDLE_BYTES} bytes, not {len(handle)}")
    if offset < 0 or offset % dtype.itemsize:
        raise ValueError(f"a lent tensor of {name} cannot begin at byte {offset}")
    return {
        "dtype": dtype,
        "shape": shape,
        "stride": stride,
        "handle": handle,
        "number": number,
        "offset": offset,
    }


def _wait_for(device: int, event: bytes) -> None:
    import torch

    try:
        opened = _event(device, event)
        torch.cuda.current_stream(device).wait_event(opened)
    except RuntimeError as error:
        raise CudaError(f"the sender's event cannot be waited for: {error}") from error


@lru_cache(256)
def _event(device: int, handle: bytes) -> torch.cuda.Event:
    """A lender's event: it has one for each stream, so few are ever opened."""
    import torch

    return torch.cuda.Event.from_ipc_handle(_device(device), handle)


def _open(row: dict[str, Any], device: int, ticket: object) -> torch.Tensor:
    import torch

    dtype, shape, stride = row["dtype"], row["shape"], row["stride"]
    if row["handle"] is None:
        return torch.empty(0, dtype=dtype, device=_device(device)).as_strided(shape, stride)
    nbytes = span_of(shape, stride) * dtype.itemsize
    mapping = _mappings().take(device, row["handle"], row["number"])
    # From here on its end gives it back, whatever happens.
    memory = _BorrowedMemory(mapping, row["offset"], nbytes, ticket)
    if row["offset"] + nbytes > mapping.nbytes:
        raise ValueError(
            f"bytes {row['offset']} to {row['offset'] + nbytes} of an allocation of {mapping.nbytes}"
        )
    return _as_tensor(memory).view(dtype).as_strided(shape, stride)


def _device(number: int) -> torch.device:
    import torch

    return torch.device("cuda", number)


def _as_tensor(memory: _BorrowedMemory) -> torch.Tensor:
    """Borrowed memory as a flat uint8 tensor, which keeps ``memory`` alive through views of views."""
    import torch

    return torch.as_tensor(memory, device=_device(memory.device))


class _BorrowedMemory:
    """Part of another process's allocation, open here."""

    def __init__(self, mapping: OpenAllocation, offset: int, nbytes: int, ticket: object) -> None:
        self.device = mapping.key[0]
        self.mapping = mapping
        self.ticket = ticket
        self.__cuda_array_interface__ = {
            "version": 2,
            "typestr": "|u1",
            "shape": (nbytes,),
            "strides": None,
            "data": (mapping.start + offset, False),
        }

    def __del__(self) -> None:
        when_gpu_is_done(self.device, partial(_give_back, self.mapping, self.ticket))


def _give_back(mapping: OpenAllocation, ticket: object) -> None:
    """End a loan. Its ticket goes with this call, for the lender may have the memory back only then."""
    _mappings().give_back(mapping)


@cache
def _mappings() -> CudaMappings:
    return CudaMappings(cuda_driver(), _later)


def _later(seconds: float, step: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, step)
    timer.daemon = True
    timer.start()


# --- the GPU's name ----------------------------------------------------------------------------


@cache
def _devices() -> dict[str, int]:
    """Physical GPU -> its number here: what another process calls cuda:0 may be cuda:1 in this one."""
    import torch

    return {_uuid(torch.cuda.get_device_properties(i)): i for i in range(torch.cuda.device_count())}


def _uuid(properties: Any) -> str:
    return str(properties.uuid)
