"""A GPU's tensors in payloads: copied straight to where they go, by way of nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu, install, on_gpu

from sglang_omni.pipeline.relay_io import read_blob, write_blob
from sglang_omni.proto import codec
from sglang_omni.relay.shm import ShmRelay, device_copy, pinned


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return install(monkeypatch)


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("sender", slot_size_mb=64, credits=1)
    yield relay
    relay.close()


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
