"""Torch tensors where the codec cannot read or make them by itself.

The Rust core takes the common tensor through DLPack's C exchange table. What comes here: a torch
without that table, tensors of other devices and layouts, lazy conjugation and negation, dtypes that
DLPack does not have, and gaps in views of a GPU's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from sglang_omni._core import PAYLOAD_DTYPES
from sglang_omni.packages import install_line

CODES = {name: code for code, name in enumerate(PAYLOAD_DTYPES)}
NUMPY_DTYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(name) for name, code in CODES.items() if hasattr(np, name)
}


def load_torch() -> Any:
    """torch, imported if need be.

    Raises:
        ValueError: It is not installed.
    """
    try:
        # Waits where another thread is importing it.
        return import_module("torch")
    except ImportError as error:
        raise ValueError(
            f"a torch object was received and torch is not installed: {install_line('serve')}"
        ) from error


def torch_dtype(name: str) -> Any:
    """The dtype of that name, e.g. ``"bfloat16"``. Raises ValueError where this torch has none."""
    torch = load_torch()
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown torch dtype {name!r}")
    return dtype


def dtype_name(dtype: Any) -> str:
    """``"bfloat16"`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def describe(tensor: Any) -> tuple[Any, int, int, Sequence[int], Sequence[int], bool] | None:
    """Where a tensor's elements are: stand-in, dtype code, address, shape, strides in elements, device.

    The stand-in owns the memory: the tensor itself, or a copy with its values resolved. ``device`` says
    that this is the memory of a CUDA GPU, out of the CPU's reach; of other devices it is a copy.
    None for tensors without memory of a dtype of the payload format.
    """
    torch = sys.modules["torch"]
    code = CODES.get(dtype_name(tensor.dtype))
    if code is None or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested:
        return None
    if tensor.device.type not in ("cpu", "cuda"):
        tensor = tensor.detach().cpu()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    if not has_memory(tensor):
        return None
    return tensor, code, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.is_cuda


def has_memory(tensor: Any) -> bool:
    """Whether its elements lie anywhere: not so in fakes, wrappers of other tensors and freed storages."""
    try:
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:
        return False


def gather(views: Sequence[tuple[Any, int, Sequence[int]]], nbytes: int) -> tuple[Any, int]:
    """New memory of a GPU with the values of tensors that lie there, and its address.

    Args:
        views: Each tensor, and where in that memory it is to lie: offset and strides in its elements.
        nbytes: The memory's size.
    """
    torch = sys.modules["torch"]
    memory = torch.zeros(nbytes, dtype=torch.uint8, device=views[0][0].device)
    for tensor, offset, strides in views:
        # What is expanded is one element there as here.
        sizes = [1 if step == 0 else size for size, step in zip(tensor.shape, strides, strict=True)]
        values = tensor.detach().as_strided(sizes, tensor.stride())
        target = torch.empty(0, dtype=tensor.dtype, device=memory.device)
        target.set_(memory.untyped_storage(), offset, sizes, strides).copy_(values)
    # What stands for the tensors is of their kind: who owns it knows where it lies.
    return memory.as_subclass(type(views[0][0])), memory.data_ptr()


def view(buffer: Any, name: str, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """A tensor that views ``buffer`` from byte ``offset`` on; strides in elements."""
    torch, dtype = load_torch(), torch_dtype(name)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    flat = torch.frombuffer(buffer, dtype=dtype, count=reach, offset=offset)
    return flat.as_strided(shape, strides)
