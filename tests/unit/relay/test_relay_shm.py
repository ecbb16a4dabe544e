"""Credits, waiting and ends of the shm relay, within one process."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Iterator

import pytest
import torch
from relay_stand_ins import MIB, block
from waiting import rounds, until

from sglang_omni.pipeline import relay_io
from sglang_omni.relay import RelayError, RelayReadError, RelayTimeout
from sglang_omni.relay.base import RelayRevoked
from sglang_omni.relay.shm import relay as shm_module
from sglang_omni.relay.shm.relay import ShmRelay


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("sender", slot_size_mb=1, credits=2)
    yield relay
    relay.close()


async def test_a_put_waits_for_room_and_goes_on_when_it_returns(relay: ShmRelay) -> None:
    first, put = await relay_io.write_blob(relay, "first", block(1.5, 1))
    second = asyncio.create_task(relay_io.write_blob(relay, "second", block(1.5, 2)))
    await rounds()
    assert not second.done()
    assert not put.is_complete
    assert (await relay_io.read_blob(relay, "first", first))[0] == 1
    metadata, _ = await asyncio.wait_for(second, 60)
    assert (await relay_io.read_blob(relay, "second", metadata))[0] == 2


async def test_a_stalled_edge_does_not_hold_up_another(relay: ShmRelay) -> None:
    await relay_io.write_blob(relay, "a", block(1.5), target="stalled")
    waiting = asyncio.create_task(relay_io.write_blob(relay, "b", block(1.5), target="stalled"))
    for number in range(10):
        metadata, _ = await relay_io.write_blob(relay, f"c{number}", block(1.5, number), target="quick")
        assert (await relay_io.read_blob(relay, f"c{number}", metadata))[0] == number
    assert not waiting.done()
    relay.cleanup("a")
    await asyncio.wait_for(waiting, 60)


async def test_its_usage_is_what_is_under_way(relay: ShmRelay) -> None:
    assert relay.usage() == {}
    metadata, _ = await relay_io.write_blob(relay, "r", block(0.5), target="t")
    under_way = relay.usage()
    assert (under_way["relay_held_slots"], under_way["relay_held_bytes"] > 500_000) == (1, True)
    view = await relay_io.read_blob(relay, "r", metadata)
    assert relay.usage() == under_way
    del view
    freed = relay.usage()
    assert (freed["relay_held_slots"], freed["relay_held_bytes"]) == (0, 0)
    assert freed["relay_written_bytes_total"] > 500_000


async def test_waiting_in_vain_names_who_has_the_room(
    relay: ShmRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_module, "_WAIT_SECONDS", 0.05)
    metadata, _ = await relay_io.write_blob(relay, "read", block(0.9), target="t")
    unread, _ = await relay_io.write_blob(relay, "unread", block(0.9), target="t")
    view = await relay_io.read_blob(relay, "read", metadata)
    with pytest.raises(RelayTimeout) as caught:
        await relay_io.write_blob(relay, "third", block(0.9), target="t")
    assert f'"read" is held by process {os.getpid()}' in str(caught.value)
    assert '"unread" is not read yet' in str(caught.value)
    assert relay.stats()["t"]["waited"] > 0
    del view, unread


async def test_a_reader_that_keeps_everything_does_not_starve_the_writer(relay: ShmRelay) -> None:
    kept = []
    for number in range(20):
        metadata, _ = await asyncio.wait_for(relay_io.write_blob(relay, "k", block(0.5, number)), 60)
        kept.append(await relay_io.read_blob(relay, "k", metadata))
    assert [int(view[-1]) for view in kept] == list(range(20))


async def test_what_was_cleaned_up_or_read_is_stale(relay: ShmRelay) -> None:
    metadata, put = await relay_io.write_blob(relay, "k", block(0.1))
    relay.cleanup("k")
    await put.wait_for_completion(60)
    with pytest.raises(RelayReadError, match="stale"):
        await relay_io.read_blob(relay, "k", metadata)
    metadata, _ = await relay_io.write_blob(relay, "k", block(0.1))
    view = await relay_io.read_blob(relay, "k", metadata)
    with pytest.raises(RelayReadError, match="stale"):
        await relay_io.read_blob(relay, "k", metadata)
    relay.cleanup("k")
    await relay_io.write_blob(relay, "l", block(0.1, 9))
    assert view[0] == 0


async def test_completion_is_the_readers_taking(relay: ShmRelay) -> None:
    metadata, put = await relay_io.write_blob(relay, "k", block(0.1))
    with pytest.raises(TimeoutError, match="'k' was not read"):
        await put.wait_for_completion(0.02)
    waiting = asyncio.create_task(put.wait_for_completion(60))
    await asyncio.sleep(0)
    view = await relay_io.read_blob(relay, "k", metadata)
    await asyncio.wait_for(waiting, 60)
    assert view.numel()


async def test_a_payload_over_the_limit_has_memory_of_its_own(relay: ShmRelay) -> None:
    sent = torch.arange(MIB)
    metadata, _ = await relay_io.write_blob(relay, "big", sent)
    assert torch.equal(await relay_io.read_blob(relay, "big", metadata), sent)
    assert relay.arena.outstanding() == 0


async def test_plain_put_and_get(relay: ShmRelay) -> None:
    sent = torch.randn(100, 30)[:, ::2]
    put = await relay.put_async(sent, request_id="k", dst_rank=1)
    received = torch.empty(50 * 30, dtype=torch.float32)
    get = await relay.get_async(put.metadata, received, request_id="k")
    await get.wait_for_completion()
    await put.wait_for_completion(60)
    assert torch.equal(received.reshape(100, 15), sent)
    put = await relay.put_async(sent, request_id="k")
    with pytest.raises(ValueError, match="do not fit"):
        await relay.get_async(put.metadata, torch.empty(3))


async def test_a_plain_put_sends_what_a_lazy_view_shows(relay: ShmRelay) -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    for sent in (numbers.conj(), numbers.conj().imag, numbers.imag):
        put = await relay.put_async(sent)
        received = torch.empty_like(sent, memory_format=torch.contiguous_format)
        await relay.get_async(put.metadata, received)
        assert torch.equal(received, sent)


async def test_a_closed_relay_says_so(relay: ShmRelay) -> None:
    await relay_io.write_blob(relay, "a", block(1.5))
    waiting = asyncio.create_task(relay_io.write_blob(relay, "b", block(1.5)))
    await rounds()
    relay.close()
    with pytest.raises(RelayError, match="closed"):
        await asyncio.wait_for(waiting, 60)
    with pytest.raises(RelayError, match="closed"):
        await relay_io.write_blob(relay, "c", block(0.5))


async def test_a_requests_end_takes_back_all_that_it_has_under_way(relay: ShmRelay) -> None:
    """Its chunks too, and nothing of another request whose id begins as its own."""
    own = ["a", "a:stream:x:y:0", "a:stream:x:y:0:mask"]
    others = ["ab", "ab:stream:x:y:0", "b:stream:a:y:0", "a%3Ab~1"]
    for key in [*own, *others]:
        await relay_io.write_blob(relay, key, block(0.1))
    assert relay.arena.outstanding() == 7
    # A key of its own is that payload's alone.
    relay.cleanup("a:stream:x:y:0")
    assert relay.arena.outstanding() == 6
    relay.cleanup("a")
    assert relay.arena.outstanding() == 4


async def test_a_put_that_waits_ends_with_its_request(relay: ShmRelay) -> None:
    await relay_io.write_blob(relay, "a", block(1.9), target="t")
    waiting = {
        key: asyncio.create_task(relay_io.write_blob(relay, key, block(1.0), target="t"))
        for key in ("b:stream:x:t:0", "c")
    }
    await rounds()
    relay.cleanup("b")
    with pytest.raises(RelayRevoked, match="its request has ended"):
        await asyncio.wait_for(waiting["b:stream:x:t:0"], 60)
    assert not waiting["c"].done()
    relay.cleanup("a")
    await asyncio.wait_for(waiting["c"], 60)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("end", ["cancelled", "in vain", "revoked", "sent"])
async def test_a_put_that_waited_keeps_nothing(
    relay: ShmRelay, monkeypatch: pytest.MonkeyPatch, end: str, is_large: bool
) -> None:
    """Not until the garbage collector comes: full collections are rare in a stage."""
    monkeypatch.setattr(shm_module, "_WAIT_SECONDS", 0.2 if end == "in vain" else 30.0)
    if is_large:  # A thread copies it.
        monkeypatch.setattr(shm_module, "_COPY_IN_THREAD", 0)
    await relay_io.write_blob(relay, "first", block(1.9), target="t")
    sent = block(1.0)
    kept = weakref.ref(sent)
    gc.collect()
    gc.disable()
    try:
        put = asyncio.create_task(relay_io.write_blob(relay, "second", sent, target="t"))
        del sent
        await until(lambda: relay.usage()["relay_waits_total"] == 1)
        if end == "cancelled":
            put.cancel()
        elif end == "revoked":
            relay.cleanup("second")
        elif end == "sent":
            relay.cleanup("first")
        await asyncio.wait([put], timeout=60)
        assert put.done()
        assert (end == "sent") == (not put.cancelled() and put.exception() is None)
        del put
        # A thread lets go of its call a moment after the call has ended.
        await until(lambda: kept() is None)
    finally:
        gc.enable()
