"""Python objects as msgpack with typed extensions."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import os
import random
import subprocess
import sys
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_omni.proto import OmniRequest, StagePayload, codec

Point = collections.namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: Any = None


@dataclasses.dataclass
class Checked:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("negative")


def again(obj: Any) -> Any:
    return codec.unpack(codec.pack(obj))


def exact(obj: Any) -> Any:
    """Something equal for values that are equal down to their types, whatever order sets are in."""
    match obj:
        case dict():
            return dict, [(exact(key), exact(value)) for key, value in obj.items()]
        case set() | frozenset():
            return type(obj), sorted(repr(exact(item)) for item in obj)
        case list() | tuple():
            return type(obj), [exact(item) for item in obj]
        case Frozen():
            return Frozen, exact(obj.a), exact(obj.b)
    return type(obj), repr(obj)


@pytest.mark.parametrize(
    "obj",
    [
        {1: "int", "1": "str", (1, 2): "tuple", None: "none", b"1": "bytes", frozenset([1]): "set"},
        [(), (1, (2, [3])), [], {}, set(), {1, 2}, frozenset("ab")],
        [2**63, 2**64, -(2**63) - 1, 2**500, -(2**500), 0, -1],
        [1.5, -0.0, math.inf, 1 + 2j, complex(0.0, -0.0)],
        ["", "é", "\ud800", b"", b"\x00\xff"],
        [Colour.RED, Rights.READ | Rights.WRITE, Rights(0)],
        [Point(1, Point(2, 3)), Frozen(1, (Point(1, 2),))],
        [np.float32(1.5), np.int8(-3), np.bool_(True), np.datetime64("2020-01-01", "ns"), np.str_("x")],
        [np.dtype("<f4"), np.dtype([("a", "<i4"), ("b", "<f8", (2,))])],
        [torch.float8_e4m3fn, torch.device("cpu"), torch.device("cuda:1"), torch.Size([1, 2])],
        StagePayload("r", OmniRequest({"x": (1,)}, {"stop": None}), [Frozen(1)]),
    ],
)
def test_comes_back_equal_and_of_the_same_type(obj: Any) -> None:
    assert again(obj) == obj
    assert exact(again(obj)) == exact(obj)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers(), st.text()), inner, max_size=4)
        | st.frozensets(st.integers() | st.text(), max_size=4)
        | st.builds(Frozen, st.integers(), inner)
    ),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(_values)
def test_any_nesting_comes_back(obj: Any) -> None:
    assert exact(again(obj)) == exact(obj)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.arange(10)[::-3],
        np.asfortranarray(np.ones((2, 3), np.complex64)),
        np.array(2.5),
        np.empty((0, 3), np.float16),
        np.array(["a", "bcd"]),
        np.arange(3, dtype=">i4"),
        np.zeros(2, [("a", "<i4"), ("b", "<U3")]),
    ],
    ids=str,
)
def test_arrays(array: np.ndarray[Any, Any]) -> None:
    back = again(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize("dtype", ["float8_e5m2", "uint16", "uint64", "bool", "bfloat16", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(getattr(torch, dtype))
    back = again({"t": tensor})["t"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_a_conjugate_view_keeps_its_values() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert torch.equal(again(tensor), tensor)


def test_post_init_does_not_run_again() -> None:
    checked = Checked(1)
    checked.value = -5
    assert again(checked) == checked


@pytest.mark.parametrize(
    ("obj", "path", "kind"),
    [
        ({"a": [1, object()]}, "['a'][1]", "object"),
        ([{"k": {1: lambda: 0}}], "[0]['k'][1]", "function"),
        (StagePayload("r", OmniRequest(None), {"x": (1, type("Own", (), {})())}), ".data['x'][1]", "Own"),
        ({"a": Frozen(1, [np.array([object()])])}, "['a'].b[0]", "object"),
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


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,)])
def test_too_deep_is_an_error(wrap: Any) -> None:
    obj = 1
    for _ in range(5000):
        obj = wrap(obj)
    with pytest.raises(ValueError, match="deep"):
        codec.pack(obj)


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


def test_noise_is_a_value_error() -> None:
    rng = random.Random(1)
    valid = codec.pack(
        {1: (1, {2}), "p": Point(1, Frozen(2)), "e": Colour.RED, "n": np.arange(3), "t": torch.ones(2)}
    )
    for _ in range(20_000):
        noise = bytearray(valid if rng.random() < 0.8 else os.urandom(rng.randrange(40)))
        for _ in range(rng.randrange(4)):
            if noise:
                noise[rng.randrange(len(noise))] = rng.randrange(256)
        try:
            codec.unpack(noise[: rng.randrange(len(noise) + 1)])
        except ValueError:
            continue


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
from sglang_omni.proto import codec
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
    codec.register_type(Frozen, "test.frozen")
    assert codec.unpack(codec.pack(Frozen(3))) == Frozen(3)
    with pytest.raises(ValueError, match=r"test\.frozen"):
        codec.register_type(Checked, "test.frozen")
    with pytest.raises(TypeError, match="only dataclasses"):
        codec.register_type(int)
