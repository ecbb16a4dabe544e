"""Torch tensors the long way round: what DLPack's exchange table cannot say, and a torch without one."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sglang_omni._core import Codec
from sglang_omni.proto import codec, tensors
from sglang_omni.relay.shm.cuda_driver import is_cuda_in_use


def _codec(tensor_type: type) -> Codec:
    return Codec(
        describe=codec._describe,
        find=codec._find,
        revive=codec._revive,
        load_torch=lambda: tensor_type,
        describe_tensor=tensors.describe,
        view_tensor=tensors.view,
        gather=tensors.gather,
        ndarray=np.ndarray,
        numpy_dtypes=tensors.NUMPY_DTYPES,
    )


WITH_TABLE = _codec(torch.Tensor)
# What a torch older than the table looks like to the codec.
WITHOUT_TABLE = _codec(object)


class Tagged(torch.Tensor):
    """A subclass, of which nothing is known."""


BASE = torch.randn(6, 8)
TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: BASE,
    "scalar": lambda: torch.tensor(3, dtype=torch.int16),
    "empty": lambda: torch.empty(0, 4),
    "column": lambda: BASE[:, 3],
    "steps": lambda: torch.randn(50)[::7],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "an expanded scalar": lambda: torch.tensor(2.0).expand(100, 100),
    "transposed": lambda: BASE.t(),
    "expanded": lambda: torch.tensor(1.5).expand(3, 4),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "negative of ints": lambda: torch._neg_view(torch.arange(3)),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "subclass": lambda: torch.ones(2).as_subclass(Tagged),
    "bits8": lambda: torch.arange(4, dtype=torch.uint8).view(torch.bits8),
    "int4": lambda: torch.arange(4, dtype=torch.uint8).view(torch.int4),
    "bits16": lambda: torch.arange(4, dtype=torch.int16).view(torch.bits16),
}
# Of which torch reads no values.
OPAQUE = [torch.bits8, torch.bits16, torch.int4]
# The oldest torch that is tried has no such dtype.
if FLOAT4 := getattr(torch, "float4_e2m1fn_x2", None):
    TENSORS["float4"] = lambda: torch.arange(4, dtype=torch.uint8).view(FLOAT4)
    OPAQUE.append(FLOAT4)


def content(tensor: torch.Tensor) -> Any:
    dense = tensor.detach().resolve_conj().resolve_neg()
    if dense.dtype in OPAQUE:
        dense = dense.view(torch.uint8)
    return tensor.dtype, tensor.shape, dense.tolist()


@pytest.mark.parametrize("reader", [WITH_TABLE, WITHOUT_TABLE], ids=["with", "without"])
@pytest.mark.parametrize("writer", [WITH_TABLE, WITHOUT_TABLE], ids=["with", "without"])
@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_either_way(name: str, writer: Codec, reader: Codec) -> None:
    tensor = TENSORS[name]()
    for back in (
        reader.unpack(writer.pack([tensor]))[0],
        reader.unpack_payload(bytearray(writer.plan([tensor]).to_bytes()))[0],
    ):
        assert type(back) is torch.Tensor
        assert not back.requires_grad
        assert content(back) == content(tensor)


def test_both_ways_write_the_same() -> None:
    obj = [TENSORS[name]() for name in ("plain", "scalar", "empty", "column", "transposed", "expanded")]
    assert WITH_TABLE.plan(obj).to_bytes() == WITHOUT_TABLE.plan(obj).to_bytes()
    assert WITH_TABLE.unpack(WITHOUT_TABLE.pack(obj))[3].tolist() == BASE[:, 3].tolist()


@pytest.mark.parametrize("one", [WITH_TABLE, WITHOUT_TABLE], ids=["with", "without"])
def test_what_shares_memory_shares_it_there_too(one: Codec) -> None:
    lazy = torch.randn(4, dtype=torch.complex64).conj()
    back = one.unpack_payload(bytearray(one.plan([BASE, BASE[1:], BASE, lazy, lazy]).to_bytes()))
    assert back[0] is back[2]
    assert back[3] is back[4]
    back[0][1, 2] = 99
    assert back[1][0, 2] == 99


def freed(offset: int) -> torch.Tensor:
    tensor = torch.ones(5000)[offset:]
    tensor.untyped_storage().resize_(0)
    return tensor


class Wrapper(torch.Tensor):
    """What a library's own kind of tensor is to torch, e.g. a quantized weight."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def wrapper(offset: int) -> torch.Tensor:
    make: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
    wrapped: torch.Tensor = make(Wrapper, (5000,), (1,), offset)
    return wrapped


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.ones(2).to_sparse(), "layout torch.sparse_coo on cpu"),
        (torch.ones(2, device="meta"), "on meta"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "cannot be encoded"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "tensor of torch.qint8"),
        (freed(0), "without memory of its own"),
        (freed(8), "without memory of its own"),
        (wrapper(0), "without memory of its own"),
        (wrapper(8), "without memory of its own"),
    ],
    ids=["sparse", "meta", "nested", "quantized", "freed", "part of freed", "wrapper", "wrapper of a part"],
)
@pytest.mark.parametrize("write", [WITH_TABLE.pack, WITH_TABLE.plan, WITHOUT_TABLE.plan])
def test_tensors_without_plain_memory_are_refused(write: Any, tensor: torch.Tensor, text: str) -> None:
    with pytest.raises(TypeError, match=rf"cannot encode \w+ at \['t'\]: .*{text}"):
        write({"t": tensor})


def test_messages_are_packed_while_another_thread_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Fresh:
        value: int

    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert codec.unpack(codec.pack(Fresh(1)), trusted=True) == Fresh(1)
    assert not is_cuda_in_use()
