"""Copies a GPU's memory straight into a payload: one copy for each run of bytes, and one wait for all.

A payload's plan knows where in the payload a tensor of a GPU goes and leaves that place alone; what
it left out is copied there afterwards, by the GPU itself if the memory is page-locked.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_omni.relay.shm.pinned import pinned_memory

if TYPE_CHECKING:
    import torch

# One copy at a time and process: they share the way to the GPU, and the streams below.
_copying = threading.Lock()
_streams: dict[int, torch.cuda.Stream] = {}


def copy_from_device(sources: Sequence[Any], runs: Sequence[tuple[int, int, int]]) -> None:
    """Copy runs of device memory to host memory, and return when they are there.

    The copies come after what the device's current stream has been given so far, and hold up nothing
    that it is given from now on.

    Args:
        sources: The tensors of a payload; each run is part of the memory of one of them.
        runs: ``(device address, nbytes, host address)``.

    Raises:
        ValueError: A run belongs to none of the tensors.
        RuntimeError: A copy failed.
    """
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
        for tensor in sources
        if _is_on_device(tensor)
    }
    by_device: dict[int, list[tuple[torch.Tensor, int]]] = {}
    for address, nbytes, target in runs:
        source = _bytes_at(storages, address, nbytes)
        by_device.setdefault(source.get_device(), []).append((source, target))
    with _copying:
        for device, copies in by_device.items():
            _copy(device, copies)


def _copy(device: int, copies: list[tuple[torch.Tensor, int]]) -> None:
    import torch

    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            for source, target in copies:
                for start, nbytes in pinned_memory().pin(target, source.nbytes, device=device):
                    begin = start - target
                    host_bytes(start, nbytes).copy_(source[begin : begin + nbytes], non_blocking=True)
    finally:
        # Also after a failure: what was begun writes to the payload until it is done.
        stream.synchronize()


def _bytes_at(storages: dict[int, torch.UntypedStorage], address: int, nbytes: int) -> torch.Tensor:
    """Device memory as a flat uint8 tensor."""
    import torch

    for start, storage in storages.items():
        if start <= address and address + nbytes <= start + storage.nbytes():
            empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
            return empty.set_(storage, address - start, (nbytes,), (1,))
    raise ValueError(f"{nbytes} bytes of device memory at {address:#x} belong to none of the tensors")


def _is_on_device(obj: Any) -> bool:
    return getattr(obj, "is_cuda", False)


def host_bytes(address: int, nbytes: int) -> torch.Tensor:
    """Host memory, which the caller keeps, as a flat uint8 tensor."""
    import torch

    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)
