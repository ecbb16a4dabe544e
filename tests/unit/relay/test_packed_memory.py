"""A payload has the bytes its tensors had when they were packed, or it is refused: never another's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from waiting import rounds

from sglang_omni._core import PayloadPlan
from sglang_omni.pipeline import relay_io
from sglang_omni.proto import codec
from sglang_omni.relay.shm.relay import ShmRelay

REFUSED = "has other memory than when it was packed"
KIB = 1 << 10
MIB = 1 << 20


def replace_data(tensor: Tensor) -> None:
    tensor.data = torch.zeros(3, dtype=tensor.dtype)


def set_empty(tensor: Tensor) -> None:
    tensor.set_()  # type: ignore[call-overload]


def resize(tensor: Tensor) -> None:
    tensor.resize_(8 * tensor.numel())


def resize_storage(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def write_more_to(tensor: Tensor) -> None:
    torch.cat([torch.zeros_like(tensor).repeat(8)], out=tensor)


CHANGES = [replace_data, set_empty, resize, resize_storage, write_more_to]

WAYS: dict[str, Callable[[PayloadPlan], Any]] = {
    "bytes": lambda plan: plan.to_bytes(),
    "buffer": lambda plan: plan.write_to(bytearray(plan.nbytes)),
}


def block(nbytes: int, value: int = 7) -> Tensor:
    return torch.full((nbytes,), value, dtype=torch.uint8)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("nbytes", [4 * KIB, 8 * MIB])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("write", WAYS.values(), ids=WAYS.keys())
def test_a_tensor_that_lost_its_memory(
    change: Callable[[Tensor], None], nbytes: int, write: Callable[[PayloadPlan], Any]
) -> None:
    tensor = block(nbytes)
    plan = codec.plan({"t": tensor})
    change(tensor)
    with pytest.raises(RuntimeError, match=REFUSED):
        write(plan)


@pytest.mark.parametrize("numel", [0, 100, 40_000])
def test_an_array_that_lost_its_memory(numel: int) -> None:
    array = np.full(20_000, 7)
    plan = codec.plan([array, torch.ones(5)])
    array.resize(numel, refcheck=False)
    with pytest.raises(RuntimeError, match=REFUSED):
        plan.to_bytes()


def test_a_tensor_that_only_python_can_describe() -> None:
    tensor = block(4 * KIB).as_subclass(Described)
    plan = codec.plan(tensor)
    tensor.resize_(1 * MIB)
    with pytest.raises(RuntimeError, match=REFUSED):
        plan.to_bytes()


class Described(torch.Tensor):
    pass


def test_what_leaves_the_memory_where_it_is() -> None:
    """Other values, another shape of the same elements, fewer of them, the end of all other references."""
    tensors = [block(4 * KIB) for _ in range(4)]
    parent = block(8 * KIB)
    tensors.append(parent[4 * KIB :])
    array = np.full((4, 8), 7)
    plan = codec.plan([tensors, array])
    tensors[0].fill_(9)
    tensors[1].unsqueeze_(0)
    tensors[2].resize_(5)
    array.shape = (32,)
    del parent
    tensors.clear()
    back, numbers = codec.unpack_payload(plan.to_bytes())
    assert [tensor.shape for tensor in back] == [(4 * KIB,)] * 5
    assert [int(tensor[-1]) for tensor in back] == [9, 7, 7, 7, 7]
    assert numbers.tolist() == [[7] * 8] * 4


@pytest.mark.parametrize("nbytes", [64 * KIB, 2 * MIB])
def test_memory_that_is_lost_while_it_is_copied(nbytes: int) -> None:
    """Its storage is kept until the copy has ended; what was copied is refused nevertheless."""
    lost: list[Any] = []

    class Changing(torch.Tensor):
        """Is changed as soon as somebody wants to keep its storage, as another thread might do then."""

        def detach(self) -> Tensor:
            kept = super().detach()
            self.data = torch.zeros(1, dtype=torch.uint8)
            lost.append(True)
            return kept

    plan = codec.plan(block(nbytes).as_subclass(Changing))
    if nbytes <= MIB:
        # Copied in one go, in which no other thread runs.
        assert codec.unpack_payload(plan.to_bytes()).unique().tolist() == [7]
        assert not lost
    else:
        with pytest.raises(RuntimeError, match=REFUSED):
            plan.to_bytes()
        assert lost


def test_columns_that_were_put_together_are_a_copy() -> None:
    matrix = torch.arange(100.0).reshape(10, 10)
    plan = codec.plan(matrix[:, 3])
    matrix.resize_(1000, 1000)
    assert codec.unpack_payload(plan.to_bytes()).tolist() == [3.0 + 10 * row for row in range(10)]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
async def test_a_put_that_waits_for_room() -> None:
    """The producer's next step writes to the tensor, and torch moves it, because it is too small."""
    relay = ShmRelay("sender", slot_size_mb=1, credits=2)
    try:
        await relay_io.write_blob(relay, "first", block(2 * MIB - 64 * KIB))
        output = block(512 * KIB)
        waiting = asyncio.create_task(relay_io.write_blob(relay, "second", output))
        await rounds()
        assert not waiting.done()
        write_more_to(output)
        others = [b"ANOTHER REQUEST " * (32 * KIB) for _ in range(8)]
        relay.cleanup("first")
        with pytest.raises(RuntimeError, match=REFUSED):
            await asyncio.wait_for(waiting, 60)
        assert relay.usage()["relay_held_slots"] == 0
        again, _ = await relay_io.write_blob(relay, "third", output)
        assert torch.equal(await relay_io.read_blob(relay, "third", again), output)
        assert len(others) == 8
    finally:
        relay.close()
