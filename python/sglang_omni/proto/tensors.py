"""Torch tensors that the Rust codec cannot read or make by itself.

It takes the common tensor through DLPack's C exchange table. This module handles a torch without that table,
tensors of other devices and layouts, lazy conjugation and negation, dtypes that DLPack does not have, and
gaps in views of a GPU's memory.
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
        ValueError: torch is not installed.
    """
    try:
        # Waits if another thread is importing it.
        return import_module("torch")
    except ImportError as error:
        raise ValueError(
            f"a torch object was received and torch is not installed: {install_line('serve')}"
        ) from error


def torch_dtype(name: str) -> Any:
    """The torch dtype ``name``, e.g. ``"bfloat16"``. Raises ValueError if this torch has none."""
    torch = load_torch()
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown torch dtype {name!r}")
    return dtype


def dtype_name(dtype: Any) -> str:
    """``"bfloat16"`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def describe(tensor: Any) -> tuple[Any, int, int, Sequence[int], Sequence[int], bool] | None:
    """The location of a tensor's elements.

    Returns:
        The owner of the memory (the tensor, or a copy with its values resolved), the dtype's code, the
        address, shape, strides in elements, and True if the memory is a CUDA GPU's. A tensor of another
        device is copied to the CPU. None if the tensor has no memory, or a dtype that the payload format does
        not have.
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
    """False for fake tensors, wrappers of other tensors, and tensors whose storage was freed."""
    try:
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:
        return False


def gather(views: Sequence[tuple[Any, int, Sequence[int]]], nbytes: int) -> tuple[Any, int]:
    """Copy tensors of a GPU into new memory on it.

    Args:
        views: Each tensor with its offset and strides in the new memory, in elements of the tensor.
        nbytes: The memory's size.

    Returns:
        The memory and its address.
    """
    torch = sys.modules["torch"]
    memory = torch.zeros(nbytes, dtype=torch.uint8, device=views[0][0].device)
    for tensor, offset, strides in views:
        # An expanded dimension stays one element.
        sizes = [1 if step == 0 else size for size, step in zip(tensor.shape, strides, strict=True)]
        values = tensor.detach().as_strided(sizes, tensor.stride())
        target = torch.empty(0, dtype=tensor.dtype, device=memory.device)
        target.set_(memory.untyped_storage(), offset, sizes, strides).copy_(values)
    # Of the tensors' own class, whose users may tell by it where the memory lies.
    return memory.as_subclass(type(views[0][0])), memory.data_ptr()


def view(buffer: Any, name: str, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """A tensor of dtype ``name`` that views ``buffer`` from byte ``offset`` on; strides in elements."""
    torch, dtype = load_torch(), torch_dtype(name)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    flat = torch.frombuffer(buffer, dtype=dtype, count=reach, offset=offset)
    return flat.as_strided(shape, strides)
