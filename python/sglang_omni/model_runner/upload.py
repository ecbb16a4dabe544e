"""Copies of host tensors to a device, for which the host does not wait."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(numbers: Tensor, device: torch.device) -> Tensor:
    """``numbers``, a tensor of the host, on ``device``; the same tensor if that is the host.

    From pinned memory a copy to a GPU only joins its queue. torch keeps the pinned memory until the copy is
    over (https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers).
    """
    if device.type == "cuda" and torch.cuda.is_initialized():
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)
