"""Tensors into the payload format and out of it, one pass each.

Torch is looked up only where a tensor can be involved: in what is loaded already when packing, and
when a payload holds a torch tensor when unpacking.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from sglang_omni._core import PAYLOAD_DTYPES, PayloadPlan
from sglang_omni.proto import codec

_TORCH, _NUMPY = 0, 1

_CODES = {name: code for code, name in enumerate(PAYLOAD_DTYPES)}
_NP_DTYPES = {
    code: np.dtype(name) for name, code in _CODES.items() if hasattr(np, name) and name != "bool"
} | {_CODES["bool"]: np.dtype(bool)}
_NP_CODES = {dtype: code for code, dtype in _NP_DTYPES.items()}
_torch_codes: dict[Any, int] = {}

# One row of PayloadPlan: framework, dtype code, address, shape, strides (torch: elements, numpy: bytes).
_Row = tuple[int, int, int, Sequence[int], Sequence[int]]


def plan_payload(obj: Any) -> PayloadPlan:
    """How ``obj`` is packed. The plan keeps the tensors it points to.

    Raises:
        TypeError: Something cannot be encoded; the text names its path and type.
        ValueError: ``obj`` contains itself; the text names the path.
    """
    tensors = _Collector()
    skeleton = codec.pack(obj, tensor_sink=tensors)
    if tensors.gapped:
        tensors.close_gaps()
    return PayloadPlan(skeleton, tensors.rows, tensors.sources)


class _Collector:
    """``codec.pack``'s sink: a row for each tensor, the same row for the same object."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        # What each row's memory belongs to: the object itself or a copy that stands for it.
        self.sources: list[Any] = []
        # An object's id must stay its own until the walk is over.
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        # Rows whose views skip over memory that they do not use.
        self.gapped: list[int] = []

    def __call__(self, obj: Any) -> int | None:
        number = self.numbers.get(id(obj))
        if number is not None:
            return number
        row = self._array(obj) if isinstance(obj, np.ndarray) else self._tensor(obj)
        if row is None:
            return None
        number = self.numbers[id(obj)] = len(self.rows)
        self.rows.append(row)
        self.objects.append(obj)
        return number

    def _array(self, array: np.ndarray[Any, Any]) -> _Row | None:
        code = _NP_CODES.get(array.dtype)
        if code is None or array.dtype.byteorder == ">":
            return None  # structured, text, dates, other byte orders: packed in place
        self.sources.append(array)
        if not array.flags.c_contiguous and _is_gapped(array.shape, array.strides, array.itemsize):
            self.gapped.append(len(self.rows))
        return _NUMPY, code, array.__array_interface__["data"][0], array.shape, array.strides

    def _tensor(self, tensor: Any) -> _Row | None:
        torch = sys.modules["torch"]
        if not _torch_codes:
            _torch_codes.update(
                {getattr(torch, name): code for name, code in _CODES.items() if hasattr(torch, name)}
            )
        code = _torch_codes.get(tensor.dtype)
        if code is None or tensor.layout is not torch.strided:
            return None  # packed in place, or refused there by name
        if tensor.device.type != "cpu":
            if tensor.device.type == "meta":
                return None
            tensor = tensor.detach().cpu()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.detach().resolve_conj().resolve_neg()
        self.sources.append(tensor)
        if not tensor.is_contiguous() and _is_gapped(tensor.shape, tensor.stride(), 1):
            self.gapped.append(len(self.rows))
        return _TORCH, code, tensor.data_ptr(), tensor.shape, tensor.stride()

    def close_gaps(self) -> None:
        """Make a view that skips memory contiguous, unless another tensor lives in the same memory."""
        spans = [_span(row, source.itemsize) for row, source in zip(self.rows, self.sources, strict=True)]
        for number in self.gapped:
            low, high = spans[number]
            shared = any(
                low < other_high and other_low < high
                for index, (other_low, other_high) in enumerate(spans)
                if index != number
            )
            if shared:
                continue
            framework, code, *_ = self.rows[number]
            source: Any = self.sources[number]
            if framework == _NUMPY:
                dense = np.ascontiguousarray(source)
                self.rows[number] = framework, code, dense.ctypes.data, dense.shape, dense.strides
            else:
                dense = source.contiguous()
                self.rows[number] = framework, code, dense.data_ptr(), dense.shape, dense.stride()
            self.sources[number] = dense


def _is_gapped(shape: Sequence[int], strides: Sequence[int], unit: int) -> bool:
    """Whether the memory between the first and the last element is more than the elements take."""
    count, reach = 1, unit
    for size, stride in zip(shape, strides, strict=True):
        count *= size
        reach += (size - 1) * abs(stride)
    return reach > count * unit > 0


def _span(row: _Row, itemsize: int) -> tuple[int, int]:
    framework, _, address, shape, strides = row
    if 0 in shape:
        return address, address
    unit = itemsize if framework == _TORCH else 1
    reaches = [(size - 1) * stride * unit for size, stride in zip(shape, strides, strict=True)]
    return address + sum(r for r in reaches if r < 0), address + sum(r for r in reaches if r > 0) + itemsize


class UnpackedTensors:
    """``codec.unpack``'s source: views into a received buffer, each made when first asked for."""

    def __init__(self, buffer: Any, rows: list[tuple[int, int, int, list[int], list[int] | None]]) -> None:
        self._buffer = buffer
        self._rows = rows
        self._made: dict[int, Any] = {}

    def __call__(self, number: int) -> Any:
        made = self._made.get(number)
        if made is None:
            if not 0 <= number < len(self._rows):
                raise ValueError(f"the payload has {len(self._rows)} tensors, not one of number {number}")
            made = self._made[number] = self._make(*self._rows[number])
        return made

    def _make(
        self, framework: int, code: int, offset: int, shape: list[int], strides: list[int] | None
    ) -> Any:
        if framework == _NUMPY:
            dtype = _NP_DTYPES.get(code)
            if dtype is None:
                raise ValueError(f"numpy has no dtype {PAYLOAD_DTYPES[code]!r}")
            if 0 in shape:
                return np.empty(shape, dtype)
            return np.ndarray(shape, dtype, self._buffer, offset, strides)
        torch = _import_torch()
        dtype = getattr(torch, PAYLOAD_DTYPES[code], None)
        if dtype is None:
            raise ValueError(f"this torch has no dtype {PAYLOAD_DTYPES[code]!r}")
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        if strides is None:
            count = 1
            for size in shape:
                count *= size
            flat = torch.frombuffer(self._buffer, dtype=dtype, count=count, offset=offset)
            return flat if len(shape) == 1 else flat.view(shape)
        reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        return torch.frombuffer(self._buffer, dtype=dtype, count=reach, offset=offset).as_strided(
            shape, strides
        )


def _import_torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch
    try:
        return import_module("torch")
    except ImportError as error:
        raise ValueError(
            "the payload holds a torch tensor and torch is not installed; pip install 'sglang-omni[serve]'"
        ) from error
