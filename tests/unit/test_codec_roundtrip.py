"""Anything that can be packed comes back, in a message and as a payload; plain values as msgpack has them."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import sys
import threading
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_omni.proto import codec


class Point(NamedTuple):
    x: Any
    y: Any


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: Any
    b: Any = None


@dataclasses.dataclass
class Loose:
    kept: Any
    cached: Any = dataclasses.field(init=False, compare=False)


def as_payload(obj: Any) -> Any:
    return codec.unpack_payload(bytearray(codec.plan(obj).to_bytes()))


def as_message(obj: Any) -> Any:
    return codec.unpack(codec.pack(obj))


def exact(obj: Any) -> Any:
    """Equal for values that are equal down to their types and to the bytes of their tensors."""
    match obj:
        case torch.Tensor():
            dense = obj.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
            return torch.Tensor, obj.dtype, obj.shape, dense.view(torch.uint8).tolist()
        case np.ndarray():
            return np.ndarray, obj.dtype, obj.shape, obj.tobytes()
        case dict():
            return dict, [(exact(key), exact(value)) for key, value in obj.items()]
        case set() | frozenset():
            return type(obj), sorted(repr(exact(item)) for item in obj)
        case list() | tuple():
            return type(obj), [exact(item) for item in obj]
        case Slotted():
            return Slotted, exact(obj.a), exact(obj.b)
        case Loose():
            return Loose, {name: exact(value) for name, value in vars(obj).items()}
    return type(obj), repr(obj)


_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text() | st.integers(-99, 99), inner, max_size=20)
    ),
    max_leaves=30,
)


@settings(max_examples=100, deadline=None)
@given(_plain)
def test_plain_values_are_what_msgpack_writes_and_reads(obj: Any) -> None:
    packed = codec.pack(obj)
    assert packed == msgpack.packb(obj)
    assert exact(codec.unpack(packed)) == exact(msgpack.unpackb(packed, strict_map_key=False))


def _tensor(dtype: torch.dtype, shape: list[int], cut: slice) -> torch.Tensor:
    count = int(np.prod(shape))
    return torch.arange(count, dtype=torch.float32).to(dtype).reshape(shape)[cut]


def _array(dtype: str, shape: list[int], cut: slice) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)[cut]


_shapes = st.lists(st.integers(0, 4), min_size=1, max_size=3)
_cuts = st.sampled_from([slice(None), slice(1, None), slice(None, None, 2), slice(0, 0)])
_tensors = st.builds(
    _tensor,
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]),
    _shapes,
    _cuts,
) | st.builds(_array, st.sampled_from(["f4", "i2", "?", "c8", ">i4", "U3", "datetime64[s]"]), _shapes, _cuts)

_anything = st.recursive(
    _tensors
    | st.none()
    | st.integers()
    | st.text()
    | st.binary()
    | st.complex_numbers()
    | st.sampled_from([*Level, torch.int8]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
        | st.builds(Slotted, inner, inner)
        | st.builds(Loose, inner)
        | st.dictionaries(st.tuples(st.integers(), st.text()) | st.sampled_from([*Level]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(_anything)
def test_anything_comes_back_either_way(obj: Any) -> None:
    expected = exact(obj)
    assert exact(as_message(obj)) == expected
    assert exact(as_payload(obj)) == expected


@pytest.mark.parametrize("again", [as_message, as_payload])
def test_attributes_that_are_not_there_are_not_made_up(again: Any) -> None:
    sent = Loose(1)
    assert vars(again(sent)) == {"kept": 1}
    sent.cached = 2
    assert vars(again(sent)) == {"kept": 1, "cached": 2}
    many = dataclasses.make_dataclass("many", [(f"field_{n}", int) for n in range(40)])
    codec.register_type(many, "test.many")
    wide = many(*range(40))
    del wide.field_7
    assert vars(again(wide)) == vars(wide)


def test_equal_keys_are_one_string() -> None:
    one, other = codec.unpack(codec.pack([{"temperature" * 2: 1}, {"temperature" * 2: 2}]))
    assert next(iter(one)) is next(iter(other))


def test_a_class_that_is_defined_again_is_the_one_that_comes_back() -> None:
    def define(default: int) -> type:
        cls = dataclasses.make_dataclass("Cell", [("value", int, default)])
        cls.__module__ = "notebook"
        return codec.register_type(cls)

    first = define(1)
    packed = codec.pack(first(5))
    assert type(codec.unpack(packed)) is first
    second = define(2)
    assert type(codec.unpack(packed)) is second
    assert type(codec.unpack(codec.pack(second(6)))) is second


@pytest.mark.parametrize("cls", [dict, list, str, int, bytes, float])
def test_a_subclass_is_not_taken_for_its_base(cls: type) -> None:
    own = type("Own", (cls,), {})
    with pytest.raises(TypeError, match=r"cannot encode Own at \[0\]: .*Own cannot be encoded"):
        codec.pack([own()])


@pytest.mark.parametrize("cls", [dict, list, str, Exception])
def test_a_dataclass_that_is_more_than_its_fields_is_refused(cls: type) -> None:
    own = dataclasses.make_dataclass("Own", [("a", int, 0)], bases=(cls,))
    with pytest.raises(TypeError, match=r"cannot encode Own at \[0\]: .*Own cannot be encoded"):
        codec.pack([own()])


def test_what_a_property_raises_is_shown_where_it_is() -> None:
    @dataclasses.dataclass
    class Odd:
        good: int

        def __getattribute__(self, name: str) -> Any:
            if name == "good":
                raise ValueError("not today")
            return object.__getattribute__(self, name)

    with pytest.raises(TypeError, match=r"cannot encode Odd at \['x'\]: not today"):
        codec.pack({"x": Odd(1)})


@pytest.mark.parametrize("obj", [{"a": 1, "b": 2, "c": 3}, [1, 2, 3]], ids=["dict", "list"])
def test_a_container_that_changes_meanwhile_is_an_error(obj: Any) -> None:
    @dataclasses.dataclass
    class Meddler:
        field: int

        def __getattribute__(self, name: str) -> Any:
            if name == "field":
                obj.clear()
            return object.__getattribute__(self, name)

    if isinstance(obj, dict):
        obj["a"] = Meddler(1)
    else:
        obj[0] = Meddler(1)
    with pytest.raises(TypeError, match="changed while it was packed"):
        codec.pack(obj)


def test_a_key_or_member_at_fault_is_named() -> None:
    with pytest.raises(TypeError, match=r"cannot encode type at \['a'\]\[key \(1, <class 'int'>\)\]\[1\]"):
        codec.pack({"a": {(1, int): 2}})
    with pytest.raises(TypeError, match=r"cannot encode type at \.x\{<class 'str'>\}"):
        codec.pack(Point({str}, 1))
    with pytest.raises(TypeError, match="cannot encode memoryview at the top"):
        codec.pack(memoryview(b"abcdef")[::2])


def test_views_hold_their_payload_and_it_holds_still() -> None:
    payload = bytearray(codec.plan([torch.arange(4), torch.arange(3.0)]).to_bytes())
    one, other = codec.unpack_payload(payload)
    one[0] = 7
    assert codec.unpack_payload(payload)[0][0] == 7
    counted = sys.getrefcount(payload)
    del one
    with pytest.raises(BufferError):
        payload.append(0)
    # The last view of a view may end in another thread.
    kept = [other[1:].view(-1)]
    del other
    assert sys.getrefcount(payload) == counted
    ended = threading.Thread(target=kept.clear)
    ended.start()
    ended.join()
    assert sys.getrefcount(payload) < counted
    payload.append(0)


class Slots:
    """What a relay's memory belongs to; says in which thread it is gone."""

    def __init__(self, gone: list[str]) -> None:
        self.gone = gone

    def __del__(self) -> None:
        self.gone.append(threading.current_thread().name)


def test_a_plan_that_was_the_last_to_own_a_view_lets_go_of_its_payload() -> None:
    gone: list[str] = []
    plan = codec.plan([torch.arange(4)])
    memory = (ctypes.c_char * plan.nbytes)()
    memory.slots = Slots(gone)  # type: ignore[attr-defined]
    plan.write_to(memory)
    # As where a stage sends on what it has received; torch frees a tensor's memory without the GIL.
    plans = [codec.plan(codec.unpack_payload(memory))]
    del memory
    assert gone == []
    ended = threading.Thread(target=plans.clear, name="packs")
    ended.start()
    ended.join()
    assert gone == ["packs"]


def test_a_payload_without_tensors_lets_go_at_once() -> None:
    payload = bytearray(codec.plan({"text": "x"}).to_bytes())
    value = codec.unpack_payload(payload)
    payload.append(0)
    assert value == {"text": "x"}


def test_a_plan_knows_how_many_tensors_it_has() -> None:
    tensor = torch.ones(2)
    assert codec.plan([tensor, tensor, tensor[:1], np.ones(2)]).tensors == 3
    assert codec.plan([np.array(["text"]), 1]).tensors == 0
