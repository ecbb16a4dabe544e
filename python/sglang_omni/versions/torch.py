"""Functions of torch without a public name. Tried with torch 2.7 to 2.15."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig


def can_pack(dtype: torch.dtype) -> bool:
    """True if oneDNN multiplies matrices of this dtype on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    match dtype:
        case torch.float32:
            return True
        case torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        case torch.float16:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return False


def pack(weight: Tensor, num_rows: int) -> Tensor:
    """A copy of a weight (outputs, inputs) in oneDNN's blocked layout, best for ``num_rows`` at a time."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)
    return packed


def packed_linear(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """``rows @ weight.T + bias`` for a packed weight."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product


def normed_weight(direction: Tensor, length: Tensor) -> Tensor:
    """The weight that ``torch.nn.utils.weight_norm`` computes of both, to the last bit."""
    return torch._weight_norm(direction, length, 0)


def all_threads() -> Any:
    """The ``experimental_config`` of a profile of all threads, not only of the one that starts it."""
    return _ExperimentalConfig(profile_all_threads=True)


def gloo_group(store: dist.Store, rank: int, size: int, host: str, timeout: float) -> Any:
    """A process group that listens on ``host``; the public constructors choose an address themselves."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=timeout)
    options._threads = 1
    return dist.ProcessGroupGloo(store, rank, size, options)


def nccl_group(store: dist.Store, rank: int, size: int, timeout: float) -> Any:
    """A process group outside of torch's registry, which holds one of each name in a process."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    return dist.ProcessGroupNCCL(store, rank, size, options)
