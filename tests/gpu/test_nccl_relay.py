"""A GPU's tensors through the nccl relay: by way of the host on one GPU, over NCCL between two."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import torch

from sglang_omni.relay.nccl.relay import NcclRelay

NBYTES = 5 << 20


@pytest.fixture(params=[1, 2], ids=["one GPU", "two GPUs"])
def relays(request: pytest.FixtureRequest) -> Iterator[tuple[NcclRelay, NcclRelay]]:
    if torch.cuda.device_count() < request.param:
        pytest.skip(f"needs {request.param} GPUs")
    a, b = NcclRelay("a", device="cuda:0"), NcclRelay("b", device=f"cuda:{request.param - 1}")
    assert a._endpoint.goes_by_nccl(b._endpoint.gpu) == (request.param == 2)
    yield a, b
    a.close()
    b.close()


async def carry(sender: NcclRelay, reader: NcclRelay, value: int) -> None:
    source = torch.full((NBYTES,), value, dtype=torch.uint8, device=sender.device)
    target = torch.zeros(NBYTES, dtype=torch.uint8, device=reader.device)
    put = await sender.put_async(source)
    await reader.get_async(put.metadata, target)
    assert bool((target == value).all())
    await put.wait_for_completion(30)


async def test_payloads_go_both_ways_at_once(relays: tuple[NcclRelay, NcclRelay]) -> None:
    a, b = relays
    for value in range(1, 6):
        await asyncio.gather(carry(a, b, value), carry(b, a, 100 + value))


async def test_what_was_queued_before_is_in_it_and_what_comes_later_is_not(
    relays: tuple[NcclRelay, NcclRelay],
) -> None:
    a, b = relays
    source = torch.zeros(NBYTES, dtype=torch.uint8, device=a.device)
    target = torch.zeros(NBYTES, dtype=torch.uint8, device=b.device)
    torch.cuda.synchronize(a.device)
    with torch.cuda.device(a.device), torch.cuda.stream(torch.cuda.Stream(a.device)):
        torch.cuda._sleep(500_000_000)
        source.fill_(5)
        put = await a.put_async(source)
        source.fill_(6)
    await b.get_async(put.metadata, target)
    assert bool((target == 5).all())


async def test_from_the_host_and_to_the_host(relays: tuple[NcclRelay, NcclRelay]) -> None:
    a, b = relays
    source = torch.randint(256, (NBYTES,), dtype=torch.uint8)
    target = torch.empty_like(source)
    put = await a.put_async(source)
    await b.get_async(put.metadata, target)
    assert torch.equal(target, source)
