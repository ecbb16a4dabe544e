"""A put that fails or is given up takes back itself and no other payload."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import install, on_gpu

from sglang_omni._core import ShmArena, ShmLease, checksum
from sglang_omni.pipeline.relay_io import read_blob, write_blob
from sglang_omni.proto import codec
from sglang_omni.relay.shm import ShmRelay, device_copy
from sglang_omni.relay.shm import relay as shm_module


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("sender", slot_size_mb=64, credits=1)
    yield relay
    relay.close()


def _fail(*_args: Any) -> None:
    raise RuntimeError("the GPU fell off")


async def test_a_failed_copy_from_a_gpu_takes_back_no_other_payload(
    relay: ShmRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    for key in ("request", ""):
        others = [
            await write_blob(relay, key, torch.full((100_000,), value), target=target)
            for value, target in ((1, "same"), (2, "other"))
        ]
        with monkeypatch.context() as patch:
            patch.setattr(device_copy, "_copy", _fail)
            with pytest.raises(RuntimeError, match="the GPU fell off"):
                await write_blob(relay, key, on_gpu(torch.ones(100_000)), target="same")
        assert relay.arena.outstanding() == 2
        got = [(await read_blob(relay, key, metadata))[0].item() for metadata, _ in others]
        assert got == [1, 2]
    assert relay.arena.outstanding() == 0
    assert all(stats["held"] == 0 for stats in relay.stats().values())


async def test_a_put_that_is_given_up_takes_back_no_other_payload(
    relay: ShmRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_module, "_COPY_IN_THREAD", 1 << 20)
    install(monkeypatch)
    begun, go_on = threading.Event(), threading.Event()
    copy = device_copy._copy

    def slow(*args: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        copy(*args)

    monkeypatch.setattr(device_copy, "_copy", slow)
    other, _ = await write_blob(relay, "request", np.ones(100_000), target="other")
    given_up = asyncio.create_task(write_blob(relay, "request", on_gpu(torch.ones(100_000)), target="one"))
    assert await asyncio.to_thread(begun.wait, 60)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    go_on.set()
    async with asyncio.timeout(60):
        while relay.arena.outstanding() != 1:
            await asyncio.sleep(0.005)
    assert (await read_blob(relay, "request", other))[0] == 1


async def test_a_payload_that_is_revoked_while_it_is_written_is_stale(
    relay: ShmRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    monkeypatch.setattr(device_copy, "_copy", lambda *_: relay.cleanup("request"))
    metadata, put = await write_blob(relay, "request", on_gpu(torch.ones(100_000)), target="one")
    assert put.is_complete
    assert relay.arena.outstanding() == 0
    with pytest.raises(Exception, match="stale"):
        await read_blob(relay, "request", metadata)


async def test_a_put_that_waits_has_waited_once(relay: ShmRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_module, "_LOOK_AGAIN_SECONDS", 0.01)
    block = np.ones(40 << 20, np.uint8)
    await write_blob(relay, "first", block, target="slow")
    waiting = asyncio.create_task(write_blob(relay, "second", block, target="slow"))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    relay.cleanup("first")
    await waiting
    assert relay.stats()["slow"]["waited"] == 1
    assert relay.usage()["relay_waits_total"] == 1


# --- buffers ---------------------------------------------------------------------------------


def test_memory_comes_as_a_buffer_and_is_not_written_past_its_end() -> None:
    arena = ShmArena(1 << 20)
    for sent in (b"", bytearray(b"abc"), np.arange(5000)):
        place, _ = arena.put_raw("edge", "key", sent, 60.0)
        lease = ShmLease(arena.name, place)
        assert lease.nbytes == memoryview(sent).nbytes
        assert memoryview(lease).tobytes() == memoryview(sent).tobytes()
        into = bytearray(lease.nbytes + 3)
        lease.copy_to(into)
        assert into == memoryview(sent).tobytes() + b"\0\0\0"
    with pytest.raises(ValueError, match="40000 bytes do not fit a buffer of 39999"):
        lease.copy_to(bytearray(39_999))
    with pytest.raises(BufferError):
        lease.copy_to(bytes(40_000))
    for call in (lambda: arena.put_raw("e", "k", 0, 60.0), lambda: lease.copy_to(0), lambda: checksum(0)):
        with pytest.raises(TypeError):
            call()


def test_a_checksum_is_that_of_the_bytes() -> None:
    assert checksum(b"") == checksum(bytearray())
    assert checksum(b"abc") == checksum(np.frombuffer(b"abc", np.uint8)) != checksum(b"abd")


def test_a_plan_is_written_where_it_fits_and_to_none_of_its_own_tensors() -> None:
    source = np.zeros(1000)
    plan = codec.plan([source])
    target = bytearray(plan.nbytes)
    plan.write_to(target)
    assert bytes(target) == plan.to_bytes()
    with pytest.raises(ValueError, match="do not fit"):
        plan.write_to(bytearray(plan.nbytes - 1))
    own = np.zeros(4000)
    with pytest.raises(ValueError, match="written over"):
        codec.plan([own[:1000]]).write_to(own)
