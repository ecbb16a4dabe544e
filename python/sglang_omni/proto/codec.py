"""Python objects as msgpack with typed extensions; no pickle.

``unpack`` returns the types that ``pack`` was given: tuples, sets, dicts with any hashable keys, ints of any
size, complex, enums, dataclasses, namedtuples, numpy scalars, arrays and dtypes, torch tensors, dtypes,
devices and sizes. ``bytearray`` and ``memoryview`` arrive as ``bytes``, and a tensor subclass (a
``Parameter``) as a plain tensor without its gradient.

``plan`` and ``unpack_payload`` do the same for objects with tensors that are too large to be copied through a
message: the tensors lie beside the message, and the reader gets views of them there.

Classes travel by name. ``unpack`` builds instances only of dataclasses, enums and namedtuples that this
process has registered (``register_type``) or packed; with ``trusted=True``, for peers of this host and user,
it also imports them by ``module:qualname``. No constructor, ``__setstate__`` or ``__reduce__`` of the peer's
choice runs.

The walk over an object is in the Rust core. This module answers what it asks once for each class, and handles
the rare types.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_omni._core import Codec, PayloadPlan
from sglang_omni.proto import tensors
from sglang_omni.proto.request import OmniRequest, RequestState, StagePayload

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer

# The extension codes that are written or read here; the core has all of them.
_NP_SCALAR, _NP_ARRAY, _NP_DTYPE = 9, 10, 11
_TORCH_TENSOR, _TORCH_DTYPE, _TORCH_DEVICE, _TORCH_SIZE = 12, 13, 14, 15


def pack(obj: Any) -> bytes:
    """``obj`` as bytes for ``unpack``, tensors and all.

    Raises:
        TypeError: Something in ``obj`` cannot be encoded; the text names its path and type.
        ValueError: ``obj`` contains itself or is nested too deeply; the text names the path.
    """
    return _codec.pack(obj)


def unpack(data: Buffer, *, trusted: bool = False) -> Any:
    """The object ``pack`` was given.

    Args:
        data: What ``pack`` returned.
        trusted: True if the bytes come from this host and user, so that classes that are not registered may
            be imported by name.

    Raises:
        ValueError: The bytes are malformed, or name a type that may not be built here.
    """
    return _codec.unpack(data, trusted=trusted)


def plan(obj: Any) -> PayloadPlan:
    """The layout of ``obj`` as a payload. The plan keeps the tensors that it points to.

    Raises:
        TypeError: Something in ``obj`` cannot be encoded; the text names its path and type.
        ValueError: ``obj`` contains itself or is nested too deeply; the text names the path.
    """
    return _codec.plan(obj)


def unpack_payload(payload: Buffer, *, trusted: bool = False) -> Any:
    """The object that ``plan`` was given. Its tensors are views of ``payload``.

    Args:
        payload: The bytes that the plan wrote.
        trusted: As for ``unpack``.

    Raises:
        ValueError: The bytes are malformed, or name a type that may not be built here.
    """
    return _codec.unpack_payload(payload, trusted=trusted)


# --- registry --------------------------------------------------------------------------------

_names: dict[type, str] = {}
_types: dict[str, type] = {}


def register_type(cls: type, name: str | None = None) -> type:
    """Allow instances of a dataclass, enum or namedtuple in messages from any peer.

    Usable as a class decorator.

    Args:
        cls: The class.
        name: Its name in messages, the same in both processes; by default ``module:qualname``.

    Raises:
        TypeError: The class is of another kind.
        ValueError: Another class already has that name.
    """
    if not _is_record(cls):
        raise TypeError(f"only dataclasses, enums and namedtuples can be registered, not {cls!r}")
    name = name or _default_name(cls)
    known = _types.get(name)
    # A module that is loaded again (a notebook cell, a reload) redefines the class: the last one counts.
    if known is not None and known is not cls and _default_name(known) != _default_name(cls):
        raise ValueError(f"the name {name!r} already stands for {known!r}")
    _names[cls] = name
    _types[name] = cls
    _codec.forget_names()
    return cls


def _default_name(cls: type) -> str:
    # A spawned child runs the parent's main module under another name.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}:{cls.__qualname__}"


def _is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def _is_record(cls: object) -> bool:
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls) or issubclass(cls, enum.Enum) or _is_namedtuple(cls)
    )


def _resolve(name: str, trusted: bool) -> Any:
    cls = _types.get(name)
    if cls is not None:
        return cls
    if not trusted:
        raise ValueError(
            f"the type {name!r} is not registered here; call sglang_omni.proto.codec.register_type on it "
            "in both processes"
        )
    module, _, qualname = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the type {name!r} cannot be found in this process: {error}") from error
    if not _is_record(found):
        raise ValueError(f"{name!r} is not a dataclass, enum or namedtuple")
    _types[name] = found
    return found


def _find(name: str, trusted: bool) -> tuple[Any, Any, bool, tuple[str, ...] | None, int | None]:
    """For the core, which builds instances: class, enum members, True for flags, fields, arity."""
    cls = _resolve(name, trusted)
    is_enum = issubclass(cls, enum.Enum)
    names: tuple[str, ...] | None = None
    if dataclasses.is_dataclass(cls):
        # Fields in the order in which they are written; then class and init-only variables.
        written = tuple(field.name for field in dataclasses.fields(cls))
        names = written + tuple(name for name in cls.__dataclass_fields__ if name not in written)
    return (
        cls,
        dict(cls.__members__) if is_enum else None,
        is_enum and issubclass(cls, enum.Flag),
        names,
        len(cls._fields) if _is_namedtuple(cls) else None,
    )


# --- writing ---------------------------------------------------------------------------------

# An extension's code and its body: bytes as they are, or an object to pack.
_Body = tuple[int, Any]


# A dataclass that derives from one of these holds more than its fields.
_WITH_CONTENT = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float, complex, BaseException)


def _describe(cls: type) -> tuple[Any, ...]:
    """For the core, which meets a class for the first time: the way to write its instances.

    Raises:
        TypeError: Instances of the class cannot be encoded.
    """
    torch: Any = sys.modules.get("torch")
    # While another thread imports torch there are no tensors yet.
    if hasattr(torch, "Tensor"):
        if issubclass(cls, torch.Tensor):
            return "tensor", cls in (torch.Tensor, torch.nn.Parameter), _encode_tensor
        if cls is torch.dtype:
            return "other", lambda o: (_TORCH_DTYPE, tensors.dtype_name(o).encode())
        if cls is torch.device:
            return "other", lambda o: (_TORCH_DEVICE, str(o).encode())
        if cls is torch.Size:
            return "other", lambda o: (_TORCH_SIZE, list(o))
    if cls in (np.ndarray, np.memmap):
        return "array", _encode_array
    if issubclass(cls, np.generic):
        return "other", lambda o: (_NP_SCALAR, [_dtype_to_wire(o.dtype), o.tobytes()])
    if issubclass(cls, np.dtype):
        return "other", lambda o: (_NP_DTYPE, _dtype_to_wire(o))
    if issubclass(cls, enum.Enum):
        # A combination of flags has no member name, so flags travel by value.
        return "enum", _known_name(cls), "_value_" if issubclass(cls, enum.Flag) else "_name_"
    if dataclasses.is_dataclass(cls) and not issubclass(cls, _WITH_CONTENT):
        return "dataclass", _known_name(cls), tuple(field.name for field in dataclasses.fields(cls))
    if _is_namedtuple(cls):
        return "namedtuple", _known_name(cls), cls._fields  # type: ignore[attr-defined]
    raise TypeError(f"{cls.__module__}.{cls.__qualname__} cannot be encoded")


def _known_name(cls: type) -> str:
    # A process accepts back the classes that it sends.
    if cls not in _names:
        register_type(cls)
    return _names[cls]


def _encode_array(array: np.ndarray[Any, Any]) -> _Body:
    return _NP_ARRAY, [_dtype_to_wire(array.dtype), list(array.shape), array.tobytes()]


def _encode_tensor(tensor: torch.Tensor) -> _Body:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        kind = f"{tensor.dtype} and layout {tensor.layout} on {tensor.device}"
        raise TypeError(f"a tensor of {kind} cannot be encoded")
    if not tensors.has_memory(tensor):
        raise TypeError("a tensor without memory of its own cannot be encoded")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = ctypes.string_at(plain.data_ptr(), plain.nbytes) if plain.numel() else b""
    return _TORCH_TENSOR, [tensors.dtype_name(tensor.dtype), list(tensor.shape), data]


def _dtype_to_wire(dtype: np.dtype[Any]) -> Any:
    if dtype.hasobject:
        raise TypeError(f"a numpy dtype with Python objects ({dtype}) cannot be encoded")
    return np.lib.format.dtype_to_descr(dtype)


# --- reading ---------------------------------------------------------------------------------


def _revive(code: int, body: Any) -> Any:
    """The object of an extension that the core leaves to Python."""
    return _DECODERS[code](body)


def _dtype_from_wire(wire: Any) -> np.dtype[Any]:
    dtype = np.lib.format.descr_to_dtype(_tuples(wire))
    if dtype.hasobject:
        raise ValueError(f"a numpy dtype with Python objects is refused: {dtype}")
    return dtype


def _tuples(descr: Any) -> Any:
    return descr if isinstance(descr, str | tuple) else [tuple(field) for field in descr]


def _decode_array(wire: Any) -> np.ndarray[Any, Any]:
    descr, shape, data = wire
    dtype = _dtype_from_wire(descr)
    _check_size(shape, dtype, dtype.itemsize, data)
    return np.ndarray(tuple(shape), dtype, buffer=bytearray(data))


def _decode_scalar(wire: Any) -> Any:
    descr, data = wire
    return _decode_array([descr, [], data])[()]


def _decode_tensor(wire: Any) -> Any:
    name, shape, data = wire
    dtype = tensors.torch_dtype(name)
    _check_size(shape, dtype, dtype.itemsize, data)
    if not data:
        return tensors.load_torch().empty(shape, dtype=dtype)
    return tensors.load_torch().frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _check_size(shape: list[int], dtype: Any, itemsize: int, data: bytes) -> None:
    expected = itemsize
    for size in shape:
        expected *= size
    if len(data) != expected:
        raise ValueError(f"a shape of {shape} in {dtype} needs {expected} bytes, got {len(data)}")


_DECODERS: dict[int, Callable[[Any], Any]] = {
    _NP_SCALAR: _decode_scalar,
    _NP_ARRAY: _decode_array,
    _NP_DTYPE: _dtype_from_wire,
    _TORCH_TENSOR: _decode_tensor,
    _TORCH_DTYPE: lambda body: tensors.torch_dtype(body.decode()),
    _TORCH_DEVICE: lambda body: tensors.load_torch().device(body.decode()),
    _TORCH_SIZE: lambda body: tensors.load_torch().Size(body),
}

_codec = Codec(
    describe=_describe,
    find=_find,
    revive=_revive,
    load_torch=lambda: tensors.load_torch().Tensor,
    describe_tensor=tensors.describe,
    view_tensor=tensors.view,
    gather=tensors.gather,
    ndarray=np.ndarray,
    numpy_dtypes=tensors.NUMPY_DTYPES,
)

for _cls in (OmniRequest, RequestState, StagePayload):
    register_type(_cls)
