"""Puts that fail, a GPU's tensors in payloads, and the shared memory that is page-locked for their copies."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu, install, on_gpu
from waiting import until

from sglang_omni._core import ShmArena, ShmLease, checksum
from sglang_omni.pipeline.relay_io import read_blob, write_blob
from sglang_omni.proto import codec
from sglang_omni.relay.shm import ShmRelay, device_copy, pinned
from sglang_omni.relay.shm import relay as shm_module
from sglang_omni.relay.shm.pinned import CHUNK_BYTES, PIN_FROM_BYTES, PinnedMemory


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return install(monkeypatch)


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
    await until(lambda: relay.arena.outstanding() == 1)
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
    looks = []
    next_change = relay._next_change
    monkeypatch.setattr(relay, "_next_change", lambda: looks.append(1) or next_change())
    await until(lambda: len(looks) >= 5)
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


async def through(relay: Any, obj: Any) -> Any:
    metadata, _ = await write_blob(relay, "key", obj, target="next")
    return await read_blob(relay, "key", codec.unpack(codec.pack(metadata)))


async def test_tensors_of_both_memories_arrive_together(gpu: FakeGpu, relay: ShmRelay) -> None:
    far, near = torch.randn(300, 70), torch.randn(90_000)
    got = await through(relay, {"far": [on_gpu(far)], "near": near})
    assert torch.equal(got["far"][0], far)
    assert torch.equal(got["near"], near)
    assert gpu.copies.log == ["after the current stream", "synchronize"]


async def test_views_of_one_memory_are_copied_once_and_arrive_aliased(gpu: FakeGpu, relay: ShmRelay) -> None:
    whole = torch.arange(40_000.0).reshape(200, 200)
    got = await through(relay, (on_gpu(whole), on_gpu(whole[10:20].t())))
    assert torch.equal(got[0], whole)
    assert torch.equal(got[1], whole[10:20].t())
    got[0][10, 0] = -1
    assert got[1][0, 0] == -1


async def test_conjugates_arrive_resolved(gpu: FakeGpu, relay: ShmRelay) -> None:
    values = torch.randn(5000, dtype=torch.complex64)
    assert torch.equal(await through(relay, on_gpu(values.conj())), values.conj().resolve_conj())


async def test_small_payloads_travel_in_the_message(gpu: FakeGpu, relay: ShmRelay) -> None:
    metadata, _ = await write_blob(relay, "key", on_gpu(torch.arange(6.0)))
    assert "inline" in metadata
    assert (await read_blob(relay, "key", metadata)).tolist() == [0, 1, 2, 3, 4, 5]


async def test_a_relay_with_plain_methods_gets_them_too(gpu: FakeGpu) -> None:
    class Operation:
        metadata: Mapping[str, Any] = {}

        async def wait_for_completion(self, timeout: float = 30.0) -> None: ...

    class Plain:
        async def put_async(self, tensor: torch.Tensor, request_id: str | None = None) -> Operation:
            self.flat = tensor.clone()
            return Operation()

        async def get_async(
            self, metadata: Any, dest_tensor: torch.Tensor, request_id: str | None = None
        ) -> Operation:
            dest_tensor.copy_(self.flat)
            return Operation()

        def cleanup(self, request_id: str) -> None: ...

    source = torch.randn(1000)
    assert torch.equal(await through(Plain(), on_gpu(source)), source)


async def test_several_targets_take_one_copy(gpu: FakeGpu, relay: ShmRelay) -> None:
    source = torch.randn(10_000)
    plan = codec.plan(on_gpu(source))
    held = await relay.hold_payload(plan)
    for target in ("a", "b"):
        put = await relay.put_held(held, plan.nbytes, "key", target)
        assert torch.equal(codec.unpack_payload(await relay.get_payload(put.metadata)), source)
    assert gpu.copies.log.count("synchronize") == 1


async def test_the_loop_does_not_wait_for_the_gpu(gpu: FakeGpu, relay: ShmRelay) -> None:
    for size in (10, 10_000):
        await write_blob(relay, "key", on_gpu(torch.zeros(size)))
        assert gpu.copies.thread != threading.get_ident()


async def test_the_arena_is_locked_where_it_is_used_until_the_relay_closes(
    gpu: FakeGpu, relay: ShmRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned, "CHUNK_BYTES", 1 << 20)
    source = torch.randn(1 << 20)
    assert torch.equal(await through(relay, on_gpu(source)), source)
    arena = relay.arena.mapping
    locked = sorted(gpu.driver.locked)
    assert 4 <= len(locked) <= 6, "chunks of 1 MiB for 4 MiB"
    assert all((address - arena.address) % (1 << 20) == 0 for address, _ in locked)
    assert locked[-1][0] + locked[-1][1] <= arena.address + arena.nbytes
    await through(relay, on_gpu(source))
    relay.close()
    assert gpu.driver.locked == []


async def test_payloads_of_the_cpu_lock_nothing(gpu: FakeGpu, relay: ShmRelay) -> None:
    await through(relay, torch.randn(1 << 20))
    assert gpu.driver.calls == []


async def test_a_reader_that_uses_a_gpu_locks_what_it_reads(
    gpu: FakeGpu, relay: ShmRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, _ = await write_blob(relay, "key", torch.randn(1 << 18))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    got = await read_blob(ShmRelay("reader"), "key", metadata)
    ((address, nbytes),) = gpu.driver.locked
    assert address <= got.data_ptr() < got.data_ptr() + got.nbytes <= address + nbytes
    pinned.pinned_memory()._remove(next(iter(pinned.pinned_memory()._mappings)))


async def test_a_failed_copy_is_that_puts_error_and_leaves_nothing_under_way(
    gpu: FakeGpu, relay: ShmRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(address: int, nbytes: int) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(device_copy, "host_bytes", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        await write_blob(relay, "key", on_gpu(torch.zeros(10_000)))
    assert relay.arena.outstanding() == 0
    assert gpu.copies.log[-1] == "synchronize", "copies may still be writing"


def test_a_run_outside_the_tensors_is_refused(gpu: FakeGpu) -> None:
    tensor = torch.zeros(10)
    with pytest.raises(ValueError, match="belong to none of the tensors"):
        device_copy.copy_from_device([on_gpu(tensor)], [(tensor.data_ptr(), 41, 0)])


async def test_put_async_names_the_device_it_cannot_read(relay: ShmRelay) -> None:
    with pytest.raises(ValueError, match="sends CPU tensors, not one on meta"):
        await relay.put_async(torch.empty(3, device="meta"))


START = 1 << 40
MiB = 1 << 20


@dataclass
class Range:
    address: int = START
    nbytes: int = 3 * CHUNK_BYTES + MiB
    is_used_elsewhere: bool = True


@pytest.fixture
def memory(gpu: FakeGpu) -> PinnedMemory:
    memory = PinnedMemory()
    memory.add(Range())
    return memory


def test_only_touched_chunks_are_locked_and_each_once(gpu: FakeGpu, memory: PinnedMemory) -> None:
    assert memory.pin(START + CHUNK_BYTES + MiB, MiB, device=0) == [(START + CHUNK_BYTES + MiB, MiB)]
    memory.pin(START + CHUNK_BYTES, 2 * MiB, device=0)
    assert gpu.driver.locked == [(START + CHUNK_BYTES, CHUNK_BYTES)]


def test_a_copy_over_an_edge_is_made_in_pieces(gpu: FakeGpu, memory: PinnedMemory) -> None:
    address, nbytes = START + CHUNK_BYTES - MiB, CHUNK_BYTES + 3 * MiB
    assert memory.pin(address, nbytes, device=0) == [
        (START + CHUNK_BYTES - MiB, MiB),
        (START + CHUNK_BYTES, CHUNK_BYTES),
        (START + 2 * CHUNK_BYTES, 2 * MiB),
    ]
    assert gpu.driver.locked == [(START + i * CHUNK_BYTES, CHUNK_BYTES) for i in range(3)]


def test_a_range_that_ends_on_an_edge_does_not_touch_the_next_chunk(
    gpu: FakeGpu, memory: PinnedMemory
) -> None:
    assert memory.pin(START, CHUNK_BYTES, device=0) == [(START, CHUNK_BYTES)]
    assert gpu.driver.locked == [(START, CHUNK_BYTES)]


def test_the_last_chunk_ends_with_the_mapping(gpu: FakeGpu, memory: PinnedMemory) -> None:
    memory.pin(START + 3 * CHUNK_BYTES, MiB, device=0)
    assert gpu.driver.locked == [(START + 3 * CHUNK_BYTES, MiB)]


def test_small_copies_and_unknown_memory_are_left_alone(gpu: FakeGpu, memory: PinnedMemory) -> None:
    assert memory.pin(START, PIN_FROM_BYTES - 1, device=0) == [(START, PIN_FROM_BYTES - 1)]
    assert memory.pin(START - MiB, MiB, device=0) == [(START - MiB, MiB)]
    assert gpu.driver.locked == []


def test_what_is_pinned_is_known(gpu: FakeGpu, memory: PinnedMemory) -> None:
    memory.pin(START, CHUNK_BYTES, device=0)
    assert memory.is_pinned(START + MiB, MiB)
    assert not memory.is_pinned(START + CHUNK_BYTES - MiB, 2 * MiB)
    assert not memory.is_pinned(START - MiB, MiB)


def test_removing_unlocks(gpu: FakeGpu, memory: PinnedMemory) -> None:
    memory.pin(START, 2 * CHUNK_BYTES, device=0)
    memory.remove(Range())
    memory.remove(Range())
    assert gpu.driver.locked == []
    assert memory.pin(START, MiB, device=0) == [(START, MiB)]
    assert gpu.driver.locked == []


def test_what_nothing_else_uses_is_unlocked_when_more_is_added(gpu: FakeGpu) -> None:
    memory, gone, used = PinnedMemory(), Range(), Range(START * 2)
    for mapping in (gone, used):
        memory.add(mapping)
        memory.pin(mapping.address, MiB, device=0)
    gone.is_used_elsewhere = False
    memory.add(used)
    assert len(gpu.driver.locked) == 2, "what is known already is no occasion"
    memory.add(Range(START * 3))
    assert gpu.driver.locked == [(START * 2, CHUNK_BYTES)]


@pytest.mark.parametrize("device_can", [True, False])
def test_pages_that_may_only_be_read_are_locked_as_such_or_left_alone(
    gpu: FakeGpu, device_can: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinning of all other memory goes on, and the advice is about the setting."""
    memory, theirs, own = PinnedMemory(), Range(), Range(START * 2)
    gpu.driver.unwritable.append((START, START + theirs.nbytes))
    gpu.driver.locks_read_only = device_can
    memory.add(theirs, read_only=True)
    memory.add(own)
    for _ in range(2):
        assert memory.pin(START, MiB, device=0) == [(START, MiB)]
    assert memory.is_pinned(START, MiB)
    assert len(gpu.driver.calls) == 1
    assert not memory.is_pinned(own.address, MiB)
    memory.pin(own.address, MiB, device=0)
    assert ((START, CHUNK_BYTES) in gpu.driver.locked) is device_can
    assert (own.address, CHUNK_BYTES) in gpu.driver.locked
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == (not device_can)
    assert all("Unset SGLANG_OMNI_RELAY_READ_ONLY" in text and "ulimit" not in text for text in warnings)
    memory.remove(theirs)
    memory.remove(own)
    assert gpu.driver.locked == []


async def test_a_reader_tells_that_it_may_only_read(
    gpu: FakeGpu, relay: ShmRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setenv("SGLANG_OMNI_RELAY_READ_ONLY", "1")
    reported = []
    monkeypatch.setattr(
        PinnedMemory, "add", lambda self, mapping, *, read_only=False: reported.append(read_only)
    )
    metadata, _ = await write_blob(relay, "key", torch.randn(1 << 18))
    await read_blob(ShmRelay("reader"), "key", metadata)
    assert reported[-1] is True


def test_a_refusal_is_reported_once_and_not_tried_again(
    gpu: FakeGpu, memory: PinnedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    memory.pin(START, MiB, device=0)
    gpu.driver.refusal = "cuMemHostRegister_v2: out of memory (CUDA error 2)"
    for _ in range(2):
        pieces = memory.pin(START + CHUNK_BYTES, MiB, device=0)
        assert pieces == [(START + CHUNK_BYTES, MiB)]
    assert gpu.driver.calls == ["page_lock"] * 2
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "out of memory (CUDA error 2)" in warning
    assert "ulimit -l" in warning
    assert memory.is_pinned(START + CHUNK_BYTES, MiB), "a reader would try for each payload"
    memory.remove(Range())
    assert gpu.driver.locked == [], "what was locked before the refusal"
