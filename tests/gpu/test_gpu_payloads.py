"""A GPU's tensors through shared memory: one copy out of the GPU, one into it, both direct."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gpu_peer import Peer, peer

from sglang_omni.pipeline.relay_io import read_blob, write_blob
from sglang_omni.relay.shm.cuda_driver import cuda_driver
from sglang_omni.relay.shm.device_copy import host_bytes
from sglang_omni.relay.shm.pinned import PinnedMemory
from sglang_omni.relay.shm.relay import ShmRelay


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("sender", slot_size_mb=256, credits=2)
    yield relay
    relay.close()


@pytest.fixture(scope="module")
def reader() -> Iterator[Peer]:
    with peer() as process:
        yield process


async def through(relay: ShmRelay, obj: Any) -> Any:
    metadata, _ = await write_blob(relay, "key", obj, target="next")
    return await read_blob(relay, "key", metadata)


@pytest.mark.parametrize("shape", [(3,), (300, 200), (5000, 5001)], ids=["inline", "slot", "over chunks"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64], ids=str
)
async def test_a_tensor_arrives_on_the_cpu(
    relay: ShmRelay, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    source = torch.randn(shape, device="cuda").to(dtype)
    got = await through(relay, {"x": [source]})
    assert got["x"][0].device.type == "cpu"
    assert torch.equal(got["x"][0].view(torch.uint8), source.cpu().view(torch.uint8))


async def test_views_of_one_memory_stay_aliases(relay: ShmRelay) -> None:
    whole = torch.randn(500, 400, device="cuda")
    got = await through(relay, (whole, whole.t()[7:9], whole[3:3], whole[2, 2]))
    for arrived, source in zip(got, (whole, whole.t()[7:9], whole[3:3], whole[2, 2]), strict=True):
        assert torch.equal(arrived, source.cpu())
    got[0][2, 2] = 99
    assert got[3] == 99


async def test_gaps_and_lazy_bits(relay: ShmRelay) -> None:
    source = torch.randn(4000, 16, dtype=torch.complex64, device="cuda")
    got = await through(relay, [source[:, ::8], source.conj(), source.conj().imag])
    assert torch.equal(got[0], source[:, ::8].cpu())
    assert torch.equal(got[1], source.cpu().conj().resolve_conj())
    assert torch.equal(got[2], source.cpu().conj().imag)


async def test_what_was_queued_before_is_in_it_and_what_comes_later_is_not(relay: ShmRelay) -> None:
    source = torch.zeros(1 << 22, device="cuda")
    torch.cuda._sleep(500_000_000)
    source.fill_(5)
    got = await through(relay, source)
    source.fill_(6)
    assert bool((got == 5).all())


async def test_the_arena_is_page_locked(relay: ShmRelay) -> None:
    got = await through(relay, torch.ones(1 << 22, device="cuda"))
    mapping = relay.arena.mapping
    # The reader is this process as well, and has the arena at an address of its own.
    assert got.is_pinned()
    assert host_bytes(mapping.address, 4096).is_pinned()
    relay.close()
    assert not host_bytes(mapping.address, 4096).is_pinned()


async def test_another_process_copies_straight_to_its_gpu(relay: ShmRelay, reader: Peer) -> None:
    source = torch.randn(1 << 20, device="cuda")
    metadata, _ = await write_blob(relay, "key", source, target="next")
    got = await reader("read_to_gpu", metadata)
    assert got["device"] == "cuda:0"
    assert got["values"] == source.cpu().view(torch.uint8).numpy().tobytes()
    assert got["was_pinned"]


async def test_a_slot_is_not_written_to_while_a_readers_gpu_reads_it(reader: Peer) -> None:
    sender = ShmRelay("sender", slot_size_mb=1, credits=1)
    source = torch.randn(240_000)
    for _ in range(5):
        metadata, _ = await write_blob(sender, "key", source, target="next")
        await reader("queue_copy_to_gpu", metadata)
        # Needs the credit of the first, and so its memory.
        await write_blob(sender, "other", torch.zeros(240_000), target="next")
        sender.cleanup("other")
        assert (await reader("look"))["values"] == source.view(torch.uint8).numpy().tobytes()
    sender.close()


async def test_more_than_the_arena_takes(relay: ShmRelay) -> None:
    source = torch.randint(256, (600 << 20,), dtype=torch.uint8, device="cuda")
    assert torch.equal(await through(relay, source), source.cpu())


async def test_a_refused_lock_leaves_no_error_behind(
    relay: ShmRelay, caplog: pytest.LogCaptureFixture
) -> None:
    class Nowhere:
        address, nbytes, is_used_elsewhere = 1 << 40, 1 << 30, True

    memory = PinnedMemory()
    memory.add(Nowhere())
    assert memory.pin(1 << 40, 1 << 20, device=0) == [(1 << 40, 1 << 20)]
    assert "ulimit -l" in caplog.text
    # A kernel that is launched now would be blamed for it, did the runtime know of the failure.
    assert torch.ones(10, device="cuda").sum().item() == 10


def test_the_driver_knows_allocations() -> None:
    tensor = torch.empty(1 << 22, dtype=torch.uint8, device="cuda")
    with cuda_driver().on(tensor.get_device()):
        start, size = cuda_driver().allocation(tensor.data_ptr() + 100)
    assert start <= tensor.data_ptr()
    assert tensor.data_ptr() + tensor.nbytes <= start + size
