"""What a process with a GPU reads is its own until the GPU, too, has finished with it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu, install
from waiting import until

from sglang_omni._core import ShmArena, ShmLease
from sglang_omni.pipeline.relay_io import read_blob, write_blob
from sglang_omni.proto import codec
from sglang_omni.relay.shm import ShmRelay, pinned
from sglang_omni.relay.shm.gpu_returns import when_gpu_is_done


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return install(monkeypatch)


@pytest.fixture
def lease() -> tuple[Callable[[], ShmLease], Callable[[], str]]:
    """How to take the lease on a payload, and where the payload then stands."""
    arena = ShmArena(1 << 20)
    place, _ = arena.put("edge", "key", codec.plan(torch.ones(100)), 60.0)
    return lambda: ShmLease(arena.name, place), lambda: arena.state(place)


def test_an_heir_gets_the_lease_when_the_last_view_is_gone(lease: Any) -> None:
    take, state = lease
    heirs: list[ShmLease] = []
    mine = take()
    mine.bequeath(heirs.append)
    view = memoryview(mine)[10:20]
    address = mine.address
    del mine
    assert heirs == []
    view.release()
    assert [heir.address for heir in heirs] == [address]
    assert state() == "held"
    heirs.clear()
    assert state() != "held"


def test_an_heir_may_be_called_while_an_error_is_on_its_way(lease: Any) -> None:
    take, state = lease
    heirs: list[ShmLease] = []

    def fail() -> None:
        mine = take()
        mine.bequeath(heirs.append)
        raise KeyError("the function's own")

    with pytest.raises(KeyError, match="the function's own"):
        fail()
    gc.collect()
    assert len(heirs) == 1
    assert state() == "held"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_where_the_heir_fails_the_lease_is_given_back(lease: Any) -> None:
    take, state = lease
    mine = take()
    mine.bequeath(lambda: None)
    del mine
    gc.collect()
    assert state() != "held"


async def test_what_was_read_is_kept_until_the_gpu_is_done(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, asked = threading.Event(), threading.Event()

    def synchronize(device: int) -> None:
        asked.set()
        assert done.wait(20)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    sender = ShmRelay("sender")
    metadata, put = await write_blob(sender, "key", torch.ones(1 << 16), target="next")
    view = await read_blob(ShmRelay("reader"), "key", metadata)
    part = view[5:]
    del view, part
    assert await asyncio.to_thread(asked.wait, 20)
    assert not put.is_returned, "a copy may still be reading it"
    done.set()
    await until(lambda: put.is_returned)
    sender.close()
    for mapping in list(pinned.pinned_memory()._mappings.values()):
        pinned.pinned_memory().remove(mapping)


async def test_a_failure_does_not_end_the_giving_back(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(device: int) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    given: list[int] = []
    for number in range(2):
        when_gpu_is_done(0, lambda number=number: given.append(number))
        await until(lambda number=number: number in given)
    assert "unspecified launch failure" in caplog.text
