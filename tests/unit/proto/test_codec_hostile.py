"""Bytes of somebody who means harm: a ValueError or a value, in little memory and on a small stack."""

from __future__ import annotations

import dataclasses
import enum
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from sglang_omni.proto import OmniRequest, StagePayload, codec

# As deep as anything may nest.
DEPTH = 500


class Kind(enum.Enum):
    ONE = 1


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Node:
    inner: Any


VALID: dict[str, Any] = {
    "request": StagePayload("r", OmniRequest({"prompt": "hi"}, {"seed": 1}), {"x": (1, 2.5, None)}),
    "keys": {1: "a", (2, "b"): b"c", None: 2**80},
    "sets": [{1, 2}, frozenset("ab"), 1 + 2j],
    "records": Pair(Node([True, False]), Node(Pair("é", "\ud800"))),
    "numpy": [np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(1), np.dtype("<f8"), np.array(["text"])],
    "torch": [torch.ones(2, 3), torch.float16, torch.Size([1]), torch.device("cpu")],
}


def mutations(valid: bytes, count: int) -> Iterator[bytearray]:
    rng = random.Random(7)
    for _ in range(count):
        changed = bytearray(valid)
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(changed))
            match rng.randrange(4):
                case 0:
                    changed[at] = rng.randrange(256)
                case 1:
                    changed[at] ^= 1 << rng.randrange(8)
                case 2:
                    del changed[at : at + rng.randrange(1, 9)]
                case 3:
                    changed[at:at] = valid[rng.randrange(len(valid)) :][: rng.randrange(1, 30)]
            if not changed:
                break
        yield changed


def look_at(value: Any) -> None:
    """Reads all of it, memory behind tensors included."""
    if isinstance(value, torch.Tensor) and value.numel() < 10**6:
        value.detach().clone()
    elif isinstance(value, np.ndarray) and value.size < 10**6:
        value.copy()
    elif isinstance(value, dict):
        for item in (*value.keys(), *value.values()):
            look_at(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            look_at(item)
    elif dataclasses.is_dataclass(value):
        for item in vars(value).values():
            look_at(item)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", VALID)
def test_a_changed_message_is_a_value_or_a_value_error(name: str) -> None:
    refused = 0
    for changed in mutations(codec.pack(VALID[name]), 3000):
        try:
            look_at(codec.unpack(changed))
        except ValueError:
            refused += 1
    assert 0 < refused < 3000


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_changed_payload_is_a_value_or_a_value_error() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    valid = codec.plan(
        {"a": base, "b": base.t(), "c": base[::2], "n": np.arange(9)[::-2], "z": VALID}
    ).to_bytes()
    refused = 0
    for changed in mutations(valid, 4000):
        try:
            look_at(codec.unpack_payload(changed))
        except ValueError:
            refused += 1
    assert 0 < refused < 4000


def test_cut_off_or_continued_messages_are_refused() -> None:
    valid = codec.pack(VALID)
    for end in range(len(valid)):
        with pytest.raises(ValueError, match=r"."):
            codec.unpack(valid[:end])
    with pytest.raises(ValueError, match="1 bytes follow"):
        codec.unpack(valid + b"\xc0")


@pytest.mark.parametrize(
    "level",
    [b"\xdd\x00\x01\x00\x00", b"\xdf\x00\x00\x80\x00", b"\xdc\xff\xff"],
    ids=["list", "dict", "short"],
)
def test_promises_take_no_more_room_than_there_are_bytes(level: bytes) -> None:
    # Every level promises all that is left, and there are as many levels as may be.
    message = level * (DEPTH - 1) + b"\xc0" * 66_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="cut off"):
            codec.unpack(message)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(message)
    finally:
        tracemalloc.stop()


WRAPS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "dict": lambda inner: {"k": inner},
    "tuple": lambda inner: (inner,),
    "set": lambda inner: frozenset([inner]),
    "namedtuple": lambda inner: Pair(inner, None),
    "dataclass": Node,
}


def in_small_thread(call: Callable[[], Any]) -> Any:
    """What ``call`` returns or raises in a thread with 512 KiB of stack."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except ValueError as error:
            outcome.append(error)

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    return outcome[0]


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_the_deepest_that_goes_fits_a_small_stack(wrap: Callable[[Any], Any]) -> None:
    for leaf in (1j, Kind.ONE, torch.ones(1)):
        obj: Any = leaf
        for _ in range(DEPTH):
            obj = wrap(obj)
        check(obj)


def check(obj: Any) -> None:
    packed = in_small_thread(lambda: codec.pack(obj))
    assert isinstance(packed, bytes), packed
    back = in_small_thread(lambda: codec.unpack(packed))
    assert codec.pack(back) == packed


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_deeper_is_an_error_that_says_so(wrap: Callable[[Any], Any]) -> None:
    obj: Any = 1
    for _ in range(DEPTH + 1):
        obj = wrap(obj)
    error = in_small_thread(lambda: codec.pack(obj))
    assert isinstance(error, ValueError)
    assert "nested too deeply at" in str(error)


@pytest.mark.parametrize(
    "level",
    [b"\x91", b"\x81\xc0", b"\xc7\x05\x01\x91", b"\xc9\x00\x00\x00\x05\x02\x91"],
    ids=["list", "dict", "tuple", "set"],
)
def test_no_depth_of_bytes_takes_the_stack(level: bytes) -> None:
    error = in_small_thread(lambda: codec.unpack(level * 200_000 + b"\xc0"))
    assert isinstance(error, ValueError), error


@pytest.mark.parametrize(
    ("row", "text"),
    [
        # A torch tensor that would lie before the payload, or have more elements than there are numbers.
        ({"stride": -4}, "."),
        ({"size": 2**63}, "."),
        ({"size": 2**62, "stride": 0}, None),
    ],
)
def test_impossible_tensors_are_refused(row: dict[str, int], text: str | None) -> None:
    payload = bytearray(codec.plan([torch.arange(8.0)]).to_bytes())
    # One row of one dimension follows the header of 32 bytes: 16 bytes, then size, then stride.
    if "size" in row:
        payload[48:56] = row["size"].to_bytes(8, "little")
    if "stride" in row:
        payload[56:64] = row["stride"].to_bytes(8, "little", signed=True)
    if text is None:
        assert codec.unpack_payload(payload)[0].stride() == (0,)
    else:
        with pytest.raises(ValueError, match=text):
            codec.unpack_payload(payload)
