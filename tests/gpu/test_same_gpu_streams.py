"""Chunks and payloads lent to another process on the same GPU."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator

import pytest
import torch
from gpu_peer import Peer, chunk, payload, peer
from waiting import until

from sglang_omni.relay.shm.relay import ShmRelay


@pytest.fixture(scope="module")
def reader() -> Iterator[Peer]:
    with peer() as process:
        yield process


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("sender")
    yield relay
    relay.close()


def values(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().resolve_conj().contiguous().flatten().view(torch.uint8).numpy().tobytes()


DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.bool, torch.uint8, torch.int16, torch.int64, torch.uint32),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
async def test_every_kind_of_tensor(relay: ShmRelay, reader: Peer, dtype: torch.dtype) -> None:
    source = torch.randint(0, 2, (6, 5), device="cuda").to(dtype)
    wire = await chunk(relay, source)
    assert "loan" in wire
    assert await reader("read_chunk", wire) == {
        "device": "cuda:0",
        "dtype": str(dtype),
        "shape": [6, 5],
        "stride": [5, 1],
        "values": values(source),
    }


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[3:7, 10:30:4],
        lambda x: x.t(),
        lambda x: x[5, 5],
        lambda x: x[:0],
        lambda x: x[0].expand(3, 64),
        lambda x: torch.view_as_complex(x.view(64, 32, 2)).conj(),
        lambda x: x.clone().requires_grad_(),
    ],
    ids=["strided", "transposed", "no dimension", "empty", "expanded", "conjugate", "with gradient"],
)
async def test_every_kind_of_view(
    relay: ShmRelay, reader: Peer, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    source = view(torch.randn(64, 64, device="cuda"))
    got = await reader("read_chunk", await chunk(relay, source))
    assert got["device"] == "cuda:0"
    assert got["shape"] == list(source.shape)
    assert got["values"] == values(source.detach())


async def test_a_chunk_of_both_memories(relay: ShmRelay, reader: Peer) -> None:
    a, b, on_cpu = torch.randn(10, device="cuda"), torch.randn(5000, device="cuda"), torch.randn(30_000)
    wire = await chunk(relay, {"a": a, "cpu": on_cpu}, {"b": b, "cpu too": on_cpu})
    got = await reader("read_chunk_of_several", wire)
    assert {name: tensor["device"] for name, tensor in got.items()} == {
        "a": "cuda:0",
        "b": "cuda:0",
        "cpu": "cpu",
        "cpu too": "cpu",
    }
    sources = {"a": a, "b": b, "cpu": on_cpu, "cpu too": on_cpu}
    assert {name: tensor["values"] for name, tensor in got.items()} == {
        name: values(source) for name, source in sources.items()
    }
    await reader("drop")


async def test_both_processes_see_one_memory(relay: ShmRelay, reader: Peer) -> None:
    source = torch.zeros(4, device="cuda")
    await reader("read_chunk", await chunk(relay, source))
    await reader("write_one")
    assert source.tolist() == [1, 0, 0, 0]
    source[3] = 7
    torch.cuda.synchronize()
    assert (await reader("look"))["values"] == values(source)
    await reader("drop")


async def test_the_reader_sees_what_was_queued_when_it_was_lent(relay: ShmRelay, reader: Peer) -> None:
    source = torch.zeros(1 << 20, device="cuda")
    for value in range(1, 6):
        torch.cuda._sleep(200_000_000)
        source.fill_(value)
        got = await reader("read_chunk", await chunk(relay, source))
        assert got["values"] == values(torch.full((1 << 20,), float(value)))
    await reader("drop")


async def test_memory_is_the_readers_until_it_lets_go(relay: ShmRelay, reader: Peer) -> None:
    source = torch.full((8 << 20,), 3, dtype=torch.uint8, device="cuda")
    expected = values(source)
    gc.collect()
    before = torch.cuda.memory_allocated()
    wire = await chunk(relay, source)
    await reader("read_chunk", wire)
    del source
    gc.collect()
    # What the allocator could hand out instead, were it free, is written over.
    others = [torch.zeros(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert (await reader("look"))["values"] == expected
    assert relay.loans.lent() == {"next": 8 << 20}
    del others
    await reader("drop")
    await until(lambda: relay.loans.lent() == {})
    assert torch.cuda.memory_allocated() == before - (8 << 20)
    torch.cuda.empty_cache()


async def test_a_thousand_parts_of_one_tensor(relay: ShmRelay, reader: Peer) -> None:
    source = torch.arange(1000 * 256, device="cuda").view(1000, 256)
    for part in source:
        assert (await reader("read_chunk", await chunk(relay, part)))["values"] == values(part)
    await reader("drop")
    await until(lambda: relay.loans.lent() == {})


async def test_a_killed_reader_and_an_unread_chunk_give_back(relay: ShmRelay) -> None:
    left = set(os.listdir("/dev/shm"))
    with peer() as doomed:
        await doomed("read_chunk", await chunk(relay, torch.ones(1000, device="cuda")))
        assert relay.loans.lent() == {"next": 4000}
        doomed.process.kill()
        await until(lambda: relay.loans.lent() == {})
    await chunk(relay, torch.ones(1000, device="cuda"))
    relay.cleanup("r")
    await until(lambda: relay.loans.lent() == {})
    # torch's own way of sharing CUDA tensors would leave its counters there.
    assert not [name for name in set(os.listdir("/dev/shm")) - left if name.startswith("torch_")]


async def test_a_payload_is_lent_and_given_back(relay: ShmRelay, reader: Peer) -> None:
    rows, level = (torch.randn(1000, 2048, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    wire = await payload(relay, {"rows": rows, "levels": [level]})
    assert "loan" in wire
    assert "inline" in wire, "nothing of it is in shared memory"
    got = await reader("read_payload", wire)
    for found, source in ((got["rows"], rows), (got["level"], level)):
        assert (found["device"], found["values"]) == ("cuda:0", values(source))
    assert relay.loans.lent() == {"next": rows.nbytes + level.nbytes}
    await reader("drop")
    await until(lambda: relay.loans.lent() == {})


async def test_a_killed_reader_gives_back_a_payload(relay: ShmRelay) -> None:
    with peer() as doomed:
        rows = torch.ones(1000, device="cuda")
        await doomed("read_payload", await payload(relay, {"rows": rows, "levels": [rows]}))
        assert relay.loans.lent() == {"next": 8000}
        doomed.process.kill()
        await until(lambda: relay.loans.lent() == {})


async def test_memory_that_was_freed_and_taken_again_is_opened_again(relay: ShmRelay, reader: Peer) -> None:
    """An allocation stays open for a moment: what comes after it at its place must not be taken for it."""
    for value in range(1, 6):
        source = torch.full((32 << 20,), value, dtype=torch.uint8, device="cuda")
        got = await reader(
            "read_payload", await payload(relay, {"rows": source[:100], "levels": [source[-100:]]})
        )
        assert got["rows"]["values"] == got["level"]["values"] == bytes([value]) * 100
        await reader("drop")
        await until(lambda: relay.loans.lent() == {})
        del source
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


async def test_a_gpu_is_found_by_what_it_is_and_not_by_its_number(relay: ShmRelay) -> None:
    last = torch.cuda.device_count() - 1
    uuid = torch.cuda.get_device_properties(last).uuid
    with torch.cuda.device(last), peer(CUDA_VISIBLE_DEVICES=f"GPU-{uuid}") as narrow:
        source = torch.arange(100.0, device="cuda")
        got = await narrow("read_chunk", await chunk(relay, source))
    assert (got["device"], got["values"]) == ("cuda:0", values(source))


async def test_a_reader_without_the_gpu_says_so(relay: ShmRelay) -> None:
    with peer(CUDA_VISIBLE_DEVICES="") as blind:
        wire = await chunk(relay, torch.ones(3, device="cuda"))
        with pytest.raises(RuntimeError, match=r"GPU"):
            await blind("read_chunk", wire)


async def test_memory_of_expandable_segments_is_copied() -> None:
    with peer(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") as other:
        got = await other("lend_from_expandable_segments")
    assert (got["lent"], got["device"]) == (False, "cpu")
    assert got["values"] == values(torch.arange(10.0))
