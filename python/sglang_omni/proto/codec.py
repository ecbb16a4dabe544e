"""Python objects as msgpack with typed extensions; no pickle.

What ``pack`` takes comes back from ``unpack`` with the same types: tuples, sets, dicts with any
hashable keys, ints of any size, complex, enums, dataclasses, namedtuples, numpy scalars, arrays and
dtypes, torch tensors, dtypes, devices and sizes. ``bytearray`` and ``memoryview`` arrive as
``bytes``, and a tensor subclass (a ``Parameter``) as a plain tensor without its gradient.

Classes travel by name. ``unpack`` builds instances only of dataclasses, enums and namedtuples that
this process registered (``register_type``) or has itself packed; with ``trusted=True``, for peers
of this host and user, it also imports them by ``module:qualname``. No constructor, ``__setstate__``
or ``__reduce__`` of the peer's choice ever runs.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import msgpack
import numpy as np

from sglang_omni.proto.request import OmniRequest, RequestState, StagePayload

if TYPE_CHECKING:
    import torch

# Extension codes: part of the wire format, never reused for something else.
_TUPLE, _SET, _FROZENSET, _BIGINT, _COMPLEX = 1, 2, 3, 4, 5
_ENUM, _DATACLASS, _NAMEDTUPLE = 6, 7, 8
_NP_SCALAR, _NP_ARRAY, _NP_DTYPE = 9, 10, 11
_TORCH_TENSOR, _TORCH_DTYPE, _TORCH_DEVICE, _TORCH_SIZE = 12, 13, 14, 15
_TENSOR_REF = 16

# An extension nests as a message in a message; each level costs the decoder 40 KiB of C stack.
_MAX_NESTED = 64
_MAX_DEPTH = 500


class TensorSink(Protocol):
    """Takes tensors out of an object while it is packed."""

    def __call__(self, tensor: Any, /) -> int | None:
        """The number the packed object refers to ``tensor`` by, or None to pack it in place."""
        ...


# --- registry --------------------------------------------------------------------------------

_names: dict[type, str] = {}
_types: dict[str, type] = {}


def register_type(cls: type, name: str | None = None) -> type:
    """Allow instances of a dataclass, enum or namedtuple in messages from any peer.

    Usable as a class decorator. ``name`` is what both ends call the class; by default
    ``module:qualname``.

    Raises:
        TypeError: The class is of another kind.
        ValueError: Another class already has that name.
    """
    if not _is_record(cls):
        raise TypeError(f"only dataclasses, enums and namedtuples can be registered, not {cls!r}")
    name = name or _default_name(cls)
    known = _types.get(name)
    # A module loaded again (a notebook cell, a reload) redefines the class: the last one counts.
    if known is not None and known is not cls and _default_name(known) != _default_name(cls):
        raise ValueError(f"the name {name!r} already stands for {known!r}")
    _names[cls] = name
    _types[name] = cls
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


def _resolve(name: Any, trusted: bool) -> Any:
    if not isinstance(name, str):
        raise ValueError(f"a type's name must be a str, got {type(name).__name__}")
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
        raise ValueError(f"{name!r} is no dataclass, enum or namedtuple")
    _types[name] = found
    return found


# --- packing ---------------------------------------------------------------------------------


def pack(obj: Any, *, tensor_sink: TensorSink | None = None) -> bytes:
    """``obj`` as bytes for ``unpack``.

    Args:
        obj: What to pack.
        tensor_sink: Called with every torch tensor and numpy array. It may take it out of the
            message by returning a number, which ``unpack`` hands to its ``tensor_source``.

    Raises:
        TypeError: Something in ``obj`` cannot be encoded; the text names its path and type.
        ValueError: ``obj`` contains itself or is nested too deeply; the text names the path.
    """
    packer = _Packer(tensor_sink)
    try:
        return packer.pack(obj)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _explain(obj, packer)
        raise ValueError(f"cannot encode {type(obj).__name__}: {error}") from error


class _Packer:
    __slots__ = ("nested", "sink")

    def __init__(self, sink: TensorSink | None) -> None:
        self.sink = sink
        self.nested = 0

    def pack(self, obj: Any) -> bytes:
        packed: bytes = msgpack.packb(
            obj, default=self.default, strict_types=True, unicode_errors="surrogatepass"
        )
        return packed

    def nest(self, code: int, obj: Any) -> msgpack.ExtType:
        self.nested += 1
        if self.nested > _MAX_NESTED:
            raise ValueError(f"nested more than {_MAX_NESTED} levels deep")
        packed = msgpack.ExtType(code, self.pack(obj))
        self.nested -= 1
        return packed

    def default(self, obj: Any) -> msgpack.ExtType:
        """msgpack calls this for everything that is not exactly one of its own types."""
        encode = _ENCODERS.get(type(obj))
        if encode is None:
            encode = _ENCODERS[type(obj)] = _find_encoder(type(obj))
        return encode(self, obj)


_Encoder = Callable[[_Packer, Any], msgpack.ExtType]


def _find_encoder(cls: type) -> _Encoder:
    """The encoder of a class met for the first time."""
    torch = sys.modules.get("torch")
    if torch is not None:
        if issubclass(cls, torch.Tensor):
            return _encode_tensor
        if cls is torch.dtype:
            return lambda p, o: msgpack.ExtType(_TORCH_DTYPE, str(o).removeprefix("torch.").encode())
        if cls is torch.device:
            return lambda p, o: msgpack.ExtType(_TORCH_DEVICE, str(o).encode())
        if cls is torch.Size:
            return lambda p, o: p.nest(_TORCH_SIZE, list(o))
    if issubclass(cls, np.generic):
        return lambda p, o: p.nest(_NP_SCALAR, [_dtype_to_wire(o.dtype), o.tobytes()])
    if issubclass(cls, np.dtype):
        return lambda p, o: p.nest(_NP_DTYPE, _dtype_to_wire(o))
    if issubclass(cls, enum.Enum):
        return _enum_encoder(cls)
    if dataclasses.is_dataclass(cls):
        return _dataclass_encoder(cls)
    if _is_namedtuple(cls):
        name = _known_name(cls)
        return lambda p, o: p.nest(_NAMEDTUPLE, [name, *o])
    raise TypeError(f"{cls.__module__}.{cls.__qualname__} cannot be encoded")


def _known_name(cls: type) -> str:
    # What this process sends it also accepts back.
    if cls not in _names:
        register_type(cls)
    return _names[cls]


def _enum_encoder(cls: type[enum.Enum]) -> _Encoder:
    name = _known_name(cls)
    # A combination of flags has no member name of its own, so that flags travel by value.
    attribute = "_value_" if issubclass(cls, enum.Flag) else "_name_"
    return lambda p, o: p.nest(_ENUM, [name, getattr(o, attribute)])


def _dataclass_encoder(cls: type) -> _Encoder:
    name = _known_name(cls)
    fields = tuple(field.name for field in dataclasses.fields(cls))
    return lambda p, o: p.nest(_DATACLASS, [name, {f: getattr(o, f) for f in fields if hasattr(o, f)}])


def _encode_bigint(packer: _Packer, obj: int) -> msgpack.ExtType:
    return msgpack.ExtType(_BIGINT, obj.to_bytes(obj.bit_length() // 8 + 1, "little", signed=True))


def _encode_array(packer: _Packer, obj: np.ndarray[Any, Any]) -> msgpack.ExtType:
    descr = _dtype_to_wire(obj.dtype)
    if packer.sink is not None and (number := packer.sink(obj)) is not None:
        return packer.nest(_TENSOR_REF, number)
    return packer.nest(_NP_ARRAY, [descr, list(obj.shape), obj.tobytes()])


def _encode_tensor(packer: _Packer, obj: torch.Tensor) -> msgpack.ExtType:
    if packer.sink is not None and (number := packer.sink(obj)) is not None:
        return packer.nest(_TENSOR_REF, number)
    import torch

    if obj.layout is not torch.strided or obj.is_quantized or obj.is_meta:
        raise TypeError(f"a tensor of layout {obj.layout} on {obj.device} cannot be encoded")
    tensor = obj.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""
    return packer.nest(_TORCH_TENSOR, [str(obj.dtype).removeprefix("torch."), list(obj.shape), data])


def _dtype_to_wire(dtype: np.dtype[Any]) -> Any:
    if dtype.hasobject:
        raise TypeError(f"a numpy dtype with Python objects ({dtype}) cannot be encoded")
    return np.lib.format.dtype_to_descr(dtype)


_ENCODERS: dict[type, _Encoder] = {
    tuple: lambda p, o: p.nest(_TUPLE, list(o)),
    set: lambda p, o: p.nest(_SET, list(o)),
    frozenset: lambda p, o: p.nest(_FROZENSET, list(o)),
    int: _encode_bigint,
    complex: lambda p, o: p.nest(_COMPLEX, [o.real, o.imag]),
    np.ndarray: _encode_array,
    np.memmap: _encode_array,
}


# --- unpacking -------------------------------------------------------------------------------


def unpack(
    data: bytes | bytearray | memoryview,
    *,
    trusted: bool = False,
    tensor_source: Callable[[int], Any] | None = None,
) -> Any:
    """The object ``pack`` was given.

    Args:
        data: What ``pack`` returned.
        trusted: The bytes come from this host and user, so classes that are not registered may be
            imported by name.
        tensor_source: Gives the tensor for a number that ``pack``'s ``tensor_sink`` returned.

    Raises:
        ValueError: The bytes are malformed, or name a type that may not be built here.
    """
    try:
        return _Unpacker(trusted, tensor_source).unpack(data)
    except ValueError:
        raise
    except Exception as error:  # whatever malformed bytes provoke is reported as one kind
        raise ValueError(f"malformed message: {type(error).__name__}: {error}") from error


class _Unpacker:
    __slots__ = ("nested", "tensor_source", "trusted")

    def __init__(self, trusted: bool, tensor_source: Callable[[int], Any] | None) -> None:
        self.trusted = trusted
        self.tensor_source = tensor_source
        self.nested = 0

    def unpack(self, data: bytes | bytearray | memoryview) -> Any:
        return msgpack.unpackb(
            data, ext_hook=self.ext, strict_map_key=False, unicode_errors="surrogatepass", raw=False
        )

    def ext(self, code: int, data: bytes) -> Any:
        decode = _DECODERS.get(code)
        if decode is None:
            raise ValueError(f"unknown extension type {code}")
        if code in _FLAT:
            return decode(self, data)
        self.nested += 1
        if self.nested > _MAX_NESTED:
            raise ValueError(f"nested more than {_MAX_NESTED} levels deep")
        value = decode(self, self.unpack(data))
        self.nested -= 1
        return value


def _decode_enum(unpacker: _Unpacker, wire: Any) -> enum.Enum:
    name, member = wire
    cls = _resolve(name, unpacker.trusted)
    if not issubclass(cls, enum.Enum):
        raise ValueError(f"{name!r} is no enum")
    found: enum.Enum = cls(member) if issubclass(cls, enum.Flag) else cls[member]
    return found


def _decode_dataclass(unpacker: _Unpacker, wire: Any) -> Any:
    name, values = wire
    cls: Any = _resolve(name, unpacker.trusted)
    known = getattr(cls, "__dataclass_fields__", None)
    if known is None:
        raise ValueError(f"{name!r} is no dataclass")
    # The fields are set as they were: __init__ and __post_init__ ran at the sender.
    obj: Any = object.__new__(cls)
    for field, value in values.items():
        if field not in known:
            raise ValueError(f"{name!r} has no field {field!r}")
        object.__setattr__(obj, field, value)
    return obj


def _decode_namedtuple(unpacker: _Unpacker, wire: Any) -> Any:
    name, *values = wire
    cls = _resolve(name, unpacker.trusted)
    if not _is_namedtuple(cls) or len(values) != len(cls._fields):
        raise ValueError(f"{name!r} is no namedtuple of {len(values)} fields")
    return tuple.__new__(cls, values)


def _dtype_from_wire(wire: Any) -> np.dtype[Any]:
    dtype = np.lib.format.descr_to_dtype(_tuples(wire))
    if dtype.hasobject:
        raise ValueError(f"a numpy dtype with Python objects is refused: {dtype}")
    return dtype


def _tuples(descr: Any) -> Any:
    return descr if isinstance(descr, str | tuple) else [tuple(field) for field in descr]


def _decode_array(unpacker: _Unpacker, wire: Any) -> np.ndarray[Any, Any]:
    descr, shape, data = wire
    dtype = _dtype_from_wire(descr)
    expected = dtype.itemsize
    for size in shape:
        expected *= size
    if len(data) != expected:
        raise ValueError(f"an array of {shape} {dtype} needs {expected} bytes, got {len(data)}")
    return np.ndarray(tuple(shape), dtype, buffer=bytearray(data))


def _decode_scalar(unpacker: _Unpacker, wire: Any) -> Any:
    descr, data = wire
    return _decode_array(unpacker, [descr, [], data])[()]


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise ValueError(
            "the message holds a torch object and torch is not installed; pip install 'sglang-omni[serve]'"
        ) from error


def _torch_dtype(name: str) -> Any:
    torch = _torch()
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown torch dtype {name!r}")
    return dtype


def _decode_tensor(unpacker: _Unpacker, wire: Any) -> Any:
    name, shape, data = wire
    torch = _torch()
    dtype = _torch_dtype(name)
    expected = dtype.itemsize
    for size in shape:
        expected *= size
    if len(data) != expected:
        raise ValueError(f"a tensor of {shape} {name} needs {expected} bytes, got {len(data)}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _decode_tensor_ref(unpacker: _Unpacker, number: Any) -> Any:
    if unpacker.tensor_source is None or not isinstance(number, int):
        raise ValueError(f"the message refers to a tensor ({number!r}) that did not come with it")
    return unpacker.tensor_source(number)


_DECODERS: dict[int, Callable[[_Unpacker, Any], Any]] = {
    _TUPLE: lambda u, w: tuple(w),
    _SET: lambda u, w: set(w),
    _FROZENSET: lambda u, w: frozenset(w),
    _BIGINT: lambda u, w: int.from_bytes(w, "little", signed=True),
    _COMPLEX: lambda u, w: complex(*w),
    _ENUM: _decode_enum,
    _DATACLASS: _decode_dataclass,
    _NAMEDTUPLE: _decode_namedtuple,
    _NP_SCALAR: _decode_scalar,
    _NP_ARRAY: _decode_array,
    _NP_DTYPE: lambda u, w: _dtype_from_wire(w),
    _TORCH_TENSOR: _decode_tensor,
    _TORCH_DTYPE: lambda u, w: _torch_dtype(w.decode()),
    _TORCH_DEVICE: lambda u, w: _torch().device(w.decode()),
    _TORCH_SIZE: lambda u, w: _torch().Size(w),
    _TENSOR_REF: _decode_tensor_ref,
}
_FLAT = frozenset({_BIGINT, _TORCH_DTYPE, _TORCH_DEVICE})


# --- explaining what could not be packed -----------------------------------------------------


def _explain(obj: Any, packer: _Packer) -> None:
    """Raise the error that names the path of what cannot be packed. Runs after packing failed."""
    _explain_at(obj, "", (), _Packer(packer.sink))


def _explain_at(obj: Any, path: str, above: tuple[int, ...], packer: _Packer) -> None:
    where = path or "the top"
    children = _children(obj)
    if children is None:
        try:
            packer.nested = 0
            packer.pack(obj)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"cannot encode {type(obj).__name__} at {where}: {error}") from error
        return
    if id(obj) in above:
        raise ValueError(f"{type(obj).__name__} at {where} contains itself")
    if len(above) >= _MAX_DEPTH // 4:
        raise ValueError(f"nested too deeply at {where}")
    for step, child in children:
        _explain_at(child, path + step, (*above, id(obj)), packer)


def _children(obj: Any) -> Iterator[tuple[str, Any]] | None:
    """What a container holds, with the step of the path to each; None for everything else."""
    cls = type(obj)
    if cls is dict:
        return (
            (f"[{'key ' if part else ''}{key!r}]", (key if part else value))
            for key, value in obj.items()
            for part in (0, 1)
        )
    if cls in (list, tuple):
        return ((f"[{index}]", value) for index, value in enumerate(obj))
    if cls in (set, frozenset):
        return ((f"{{{value!r}}}", value) for value in obj)
    if dataclasses.is_dataclass(cls):
        names = (field.name for field in dataclasses.fields(cls))
        return ((f".{name}", getattr(obj, name)) for name in names if hasattr(obj, name))
    if _is_namedtuple(cls):
        return ((f".{name}", value) for name, value in zip(obj._fields, obj, strict=True))
    return None


for _cls in (OmniRequest, RequestState, StagePayload):
    register_type(_cls)
