"""Anything that can be packed comes back, in a message and as a payload; plain values as msgpack has them."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import math
import os
import subprocess
import sys
import threading
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_omni.proto import OmniRequest, StagePayload, codec


class Point(NamedTuple):
    x: Any
    y: Any


class Colour(enum.Enum):
    RED = 1


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: Any
    b: Any = None


@dataclasses.dataclass
class Checked:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("negative")


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
_DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
_DTYPES += [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64]
_tensors = st.builds(
    _tensor,
    st.sampled_from(_DTYPES),
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
    | st.sampled_from([*Level, torch.int8])
    | st.frozensets(st.integers() | st.text(), max_size=4),
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


@pytest.mark.parametrize(
    "obj",
    [
        {1: "int", "1": "str", (1, 2): "tuple", None: "none", b"1": "bytes", frozenset([1]): "set"},
        [(), (1, (2, [3])), [], {}, set(), {1, 2}, frozenset("ab")],
        [2**63, 2**64, -(2**63) - 1, 2**500, -(2**500), 0, -1],
        [1.5, -0.0, math.inf, 1 + 2j, complex(0.0, -0.0)],
        ["", "é", "\ud800", b"", b"\x00\xff"],
        [Colour.RED, Rights.READ | Rights.WRITE, Rights(0)],
        [Point(1, Point(2, 3)), Slotted(1, (Point(1, 2),))],
        [np.float32(1.5), np.int8(-3), np.bool_(True), np.datetime64("2020-01-01", "ns"), np.str_("x")],
        [np.dtype("<f4"), np.dtype([("a", "<i4"), ("b", "<f8", (2,))])],
        [torch.float8_e4m3fn, torch.device("cpu"), torch.device("cuda:1"), torch.Size([1, 2])],
        StagePayload("r", OmniRequest({"x": (1,)}, {"stop": None}), [Slotted(1)]),
    ],
)
def test_comes_back_equal_and_of_the_same_type(obj: Any) -> None:
    assert as_message(obj) == obj
    assert exact(as_message(obj)) == exact(obj)


@pytest.mark.parametrize("again", [as_message, as_payload])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint16).reshape(2, 3)[:, ::-1],
        np.arange(10)[::-3],
        np.zeros((100, 100))[::9, ::7],
        np.asfortranarray(np.ones((2, 3), np.complex64)),
        np.array(2.5),
        np.empty((0, 3), np.float16),
        np.array(["a", "bcd"]),
        np.arange(3, dtype=">i4"),
        np.zeros(2, [("a", "<i4"), ("b", "<U3"), ("c", "<f4", (2,))]),
    ],
    ids=str,
)
def test_arrays(array: np.ndarray[Any, Any], again: Any) -> None:
    back = again(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)
    assert back.flags.writeable


def test_post_init_does_not_run_again() -> None:
    checked = Checked(1)
    checked.value = -5
    assert as_message(checked) == checked


@pytest.mark.parametrize(
    ("obj", "path", "kind"),
    [
        ({"a": [1, object()]}, "['a'][1]", "object"),
        ([{"k": {1: lambda: 0}}], "[0]['k'][1]", "function"),
        (StagePayload("r", OmniRequest(None), {"x": (1, type("Own", (), {})())}), ".data['x'][1]", "Own"),
        ({"a": Slotted(1, [np.array([object()])])}, "['a'].b[0]", "object"),
        ({"t": [torch.ones(2).to_sparse()]}, "['t'][0]", "sparse"),
    ],
)
def test_what_cannot_be_encoded_is_named(obj: Any, path: str, kind: str) -> None:
    with pytest.raises(TypeError) as caught:
        codec.pack(obj)
    assert path in str(caught.value)
    assert kind in str(caught.value)


def test_what_contains_itself_is_named() -> None:
    inner: dict[str, Any] = {}
    inner["again"] = [inner]
    with pytest.raises(ValueError, match=r"\['x'\]\['again'\]\[0\] contains itself"):
        codec.pack({"x": inner})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda data: b"\x91" + data,
        lambda data: b"\x81\x01" + data,
        lambda data: msgpack.packb(msgpack.ExtType(1, b"\x91" + data)),
        lambda data: msgpack.packb(msgpack.ExtType(2, b"\x91" + data)),
        lambda data: msgpack.packb(msgpack.ExtType(9, data)),
    ],
    ids=["lists", "dicts", "tuples", "sets", "scalars"],
)
def test_bytes_nested_too_deeply_are_refused(wrap: Any) -> None:
    data = b"\x01"
    for _ in range(3000):
        data = wrap(data)
    with pytest.raises(ValueError, match="deep"):
        codec.unpack(data)


@pytest.mark.parametrize(
    "wire",
    [
        [7, ["os:system", {}]],
        [7, ["builtins:dict", {}]],
        [8, ["os:system", 1]],
        [6, ["subprocess:Popen", "x"]],
        [7, ["no.such.module:X", {}]],
        [7, [5, {}]],
        [9, ["|O", b"12345678"]],
        [10, ["<f4", [2**62, 4], b""]],
        [10, ["<f4", [-1], b""]],
        [12, ["load", [1], b"1"]],
        [16, 0],
        [99, 0],
    ],
    ids=str,
)
@pytest.mark.parametrize("trusted", [False, True])
def test_hostile_extensions_are_refused(wire: list[Any], trusted: bool) -> None:
    code, value = wire
    with pytest.raises(ValueError):
        codec.unpack(msgpack.packb(msgpack.ExtType(code, msgpack.packb(value))), trusted=trusted)


_OTHER_PROCESS = """
import sys
from sglang_omni.proto import OmniRequest, StagePayload, codec
assert "torch" not in sys.modules
data = sys.stdin.buffer.read()
try:
    codec.unpack(data)
except ValueError as error:
    assert "register_type" in str(error), error
else:
    raise SystemExit("an unregistered class was built")
sys.stdout.buffer.write(codec.pack(codec.unpack(data, trusted=True)))
"""


def test_classes_of_the_user_cross_between_trusted_processes_only() -> None:
    import codec_classes as module

    sent = module.Ratio(1, module.Kind.EXACT)
    done = subprocess.run(
        [sys.executable, "-c", _OTHER_PROCESS],
        input=codec.pack(sent),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr.decode()
    assert codec.unpack(done.stdout) == sent


def test_a_name_stands_for_one_class() -> None:
    codec.register_type(Slotted, "test.slotted")
    assert codec.unpack(codec.pack(Slotted(3))) == Slotted(3)
    with pytest.raises(ValueError, match=r"test\.slotted"):
        codec.register_type(Checked, "test.slotted")
    with pytest.raises(TypeError, match="only dataclasses"):
        codec.register_type(int)
