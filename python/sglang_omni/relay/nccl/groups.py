"""Process groups of two ranks: 0 sends and 1 receives, over NCCL between two GPUs and gloo otherwise.

A pair that sends both ways has two groups, so neither direction waits for the other. The groups are not
known to ``torch.distributed``'s own registry: a process can have its world beside them.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from sglang_omni.relay.env_override import setting
from sglang_omni.relay.fd_limit import require_spare_files
from sglang_omni.versions.torch import gloo_group, nccl_group

SENDER, RECEIVER = 0, 1

_POLL_SECONDS = 50e-6
# More than a gloo group opens.
_FILES = 16
# So many random bytes cannot be guessed.
_MARK_BYTES = 16


def gpu_of(device: str) -> bytes:
    """The GPU's UUID in 16 bytes; zeros for the CPU."""
    if torch.device(device).type != "cuda":
        return bytes(16)
    return bytes.fromhex(str(torch.cuda.get_device_properties(device).uuid).replace("-", ""))


def host_memory(nbytes: int) -> torch.Tensor:
    """Memory of its own for a payload.

    From numpy, which asks for huge pages: with the allocator of torch most of what a large payload costs is
    its pages' faults.
    """
    return torch.from_numpy(np.empty(nbytes, np.uint8))


class PairGroup:
    """A group of two. One thread uses it.

    Args:
        store: The store over which the two find each other.
        rank: ``SENDER`` or ``RECEIVER``.
        host: The address to listen on.
        device: Where an NCCL group's tensors are; None for gloo.
        timeout: How long to wait for the other.

    Raises:
        RuntimeError: The other did not come.
        OSError: There are too few files left to open, or what the store raised.
    """

    def __init__(self, store: dist.Store, rank: int, host: str, device: str | None, timeout: float) -> None:
        self.device = torch.device(device or "cpu")
        self._store = store
        if device is None:
            require_spare_files(_FILES)
            self._group: Any = gloo_group(store, rank, 2, host, timeout)
        else:
            self._group = _nccl_group(store, rank, self.device, timeout)

    def memory(self, nbytes: int) -> torch.Tensor:
        """Memory to receive ``nbytes`` into."""
        if self.device.type == "cpu":
            return host_memory(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def begin_send(self, tensor: torch.Tensor) -> list[Any]:
        """Begin to send to the receiver; what is returned must be kept until the receiver has it.

        Raises:
            RuntimeError: The receiver is gone. The group is of no use any more.
        """
        return [self._group.send([part], RECEIVER, 0) for part in self._parts(tensor)]

    def receive(self, tensor: torch.Tensor, timeout: float) -> None:
        """Receive from the sender.

        Raises:
            RuntimeError: That failed, took too long, or brought less. The group is of no use any more. gloo
                ends the process if a peer sends more, or anything that gloo does not expect.
        """
        if self.device.type == "cpu":
            self._receive_by_gloo(tensor, timeout)
            return
        works = [self._group.recv([part], SENDER, 0) for part in self._parts(tensor)]
        # NCCL's own wait only orders streams, and its watchdog would end the process.
        deadline = time.monotonic() + timeout
        while not works[0].is_completed():
            if time.monotonic() >= deadline:
                raise RuntimeError(f"NCCL did not finish within {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def _receive_by_gloo(self, tensor: torch.Tensor, timeout: float) -> None:
        # For gloo a message that is too short is as good as any. The rest would be what this process had in
        # that memory before.
        tail = tensor[-_MARK_BYTES:].numpy()
        mark = secrets.token_bytes(tail.nbytes)
        tail[:] = np.frombuffer(mark, np.uint8)
        works = [self._group.recv([part], SENDER, 0) for part in self._parts(tensor)]
        for work in reversed(works):
            work.wait(timedelta(seconds=max(timeout, 1e-3)))
        if tail.nbytes == _MARK_BYTES and tail.tobytes() == mark:
            raise RuntimeError(f"it sent less than the {tensor.nbytes} bytes that it has announced")

    def _parts(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        # What gloo is in the middle of when a peer dies never ends; what was to come after it fails at once.
        # So a byte comes after, and is waited for first.
        return [tensor, torch.zeros(1, dtype=torch.uint8)] if self.device.type == "cpu" else [tensor]

    def close(self) -> None:
        """Tear the group down, whatever is under way."""
        self._group.abort()
        del self._group


def _nccl_group(store: dist.Store, rank: int, device: torch.device, timeout: float) -> Any:
    torch.cuda.set_device(device)
    # By default a transfer that fails takes the whole process with it.
    with setting("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"):
        return nccl_group(store, rank, 2, timeout)
