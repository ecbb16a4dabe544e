"""Copies from the host to a GPU that nothing waits for, and from a device to the host."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; the copy from a host to a GPU is queued, and the host goes on.

    From pageable memory the host would wait for the copy, and so for everything queued before it.
    """
    return pinned(tensor, device).to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """``tensor`` on the host; ones for one of the meta device, which has no values."""
    return torch.ones_like(tensor, device="cpu") if tensor.is_meta else tensor.cpu()


class HostCopy:
    """A tensor's copy to the host, queued behind all that computes the tensor; nothing waits for it.

    On a CPU it is the tensor itself.
    """

    def __init__(self, tensor: Tensor) -> None:
        # torch takes pinned memory for it.
        self._host = tensor.to("cpu", non_blocking=True)
        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))

    @property
    def is_done(self) -> bool:
        """True if ``read`` would not wait."""
        return self._event is None or self._event.query()

    def read(self) -> Tensor:
        """The tensor on the host, for whose copy this waits."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` in memory from which ``device`` can copy by itself.

    torch does not use that memory again until the copies that it has queued from it are done.
    """
    return tensor.pin_memory() if tensor.device.type == "cpu" and device.type == "cuda" else tensor
