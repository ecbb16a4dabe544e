"""What every relay does alike: bytes, order, credit, ends. See ``docs/relays.md`` for where they differ."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from relay_peers import (
    BACKENDS,
    CREDITS,
    MIB,
    SLOT_MB,
    Peer,
    PeerError,
    block,
    deadlines,
    make_relay,
    pattern,
    require,
)
from waiting import PATIENCE, until

from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.relay import RelayError, RelayTimeout

LIMIT = SLOT_MB * CREDITS * MIB


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return request.param


@pytest.fixture(scope="module")
def peer(backend: str) -> Iterator[Peer]:
    """One for all tests of a backend; it must leave with status 0."""
    peer = Peer(backend)
    yield peer
    assert peer.close() == 0


@pytest.fixture(scope="module")
def relay(backend: str) -> Iterator[Any]:
    relay = make_relay(backend, "here")
    yield relay
    relay.close()


def held(relay: Any) -> int:
    return relay.usage().get("relay_held_bytes", 0)


async def test_random_payloads_arrive_as_they_were(relay: Any, peer: Peer) -> None:
    sizes = [0, 1, 63, 64, 4096, 33_000, 130_000, 131_072, MIB + 7, LIMIT, 3 * LIMIT + 1]
    for seed, nbytes in enumerate(sizes):
        sent = pattern(seed, nbytes)
        metadata, put = await relay_io.write_blob(relay, "k", sent, target="peer")
        assert np.array_equal(await peer("read", "k", metadata), sent)
        await put.wait_for_completion(PATIENCE)
        back = await relay_io.read_blob(relay, "k", await peer("write", "k", sent))
        assert np.array_equal(back, sent)
        del back
    await peer("complete")
    await until(lambda: held(relay) == 0)


async def test_the_plain_methods_carry_any_flat_tensor(relay: Any, peer: Peer) -> None:
    for seed, nbytes in enumerate([1, 50_000, MIB + 3, 2 * LIMIT]):
        metadata = await peer("put", seed, nbytes)
        received = torch.empty(nbytes + 8, dtype=torch.uint8).fill_(9)
        get = await relay.get_async(metadata, received)
        await get.wait_for_completion()
        assert np.array_equal(received[:nbytes], pattern(seed, nbytes))
        assert received[nbytes:].tolist() == [9] * 8
        with pytest.raises(ValueError, match="do not fit"):
            await relay.get_async(await peer("put", seed, nbytes), received[: nbytes - 1])
        await peer("cleanup", "put")
    await peer("complete")


async def test_gets_come_in_any_order(relay: Any, peer: Peer) -> None:
    before = (await peer("usage")).get("relay_written_bytes_total", 0)
    many = [await peer("write", f"k{value}", block(value, 150_000)) for value in range(20)]
    written = (await peer("usage"))["relay_written_bytes_total"] - before
    assert 20 * 150_000 <= written < 20 * 151_000
    for value in (13, 0, 19, 7, *range(18, 13, -1)):
        got = await relay_io.read_blob(relay, "k", many[value])
        assert np.array_equal(got, block(value, 150_000))
        del got
    for value in range(20):
        await peer("cleanup", f"k{value}")
    await peer("complete")


async def test_many_transfers_at_once_and_both_ways(relay: Any, peer: Peer) -> None:
    sent = [
        await relay_io.write_blob(relay, "k", block(value, 150_000), target=f"t{value % 3}")
        for value in range(1, 21)
    ]
    theirs = [await peer("write", "k", block(value, 150_000), f"t{value % 3}") for value in range(1, 21)]
    peer.send("read_sums", "k", [metadata for metadata, _ in sent])

    async def read(metadata: Any) -> int:
        return int((await relay_io.read_blob(relay, "k", metadata)).sum())

    expected = [value * 150_000 for value in range(1, 21)]
    assert await asyncio.gather(*(read(metadata) for metadata in theirs)) == expected
    assert await peer.answer() == expected
    await peer("complete")
    await asyncio.gather(*(put.wait_for_completion(PATIENCE) for _, put in sent))
    await until(lambda: held(relay) == 0)


async def test_a_fan_out_reaches_every_target(relay: Any, peer: Peer) -> None:
    fan_out = FanOut(relay, block(5, 300_000))
    written = [await fan_out.write("k", target) for target in ("a", "b", "c")]
    del fan_out
    for metadata, put in written:
        assert await peer("read_sum", "k", metadata) == 1_500_000
        await put.wait_for_completion(PATIENCE)
    await until(lambda: held(relay) == 0)


async def test_an_edge_without_credit_waits_for_its_own_reader_only(relay: Any, peer: Peer) -> None:
    full = await relay_io.write_blob(relay, "full", block(1, LIMIT * 2 // 3), target="slow")
    waiting = asyncio.create_task(relay_io.write_blob(relay, "late", block(2, LIMIT * 2 // 3), target="slow"))
    metadata, _ = await relay_io.write_blob(relay, "other", block(3, LIMIT // 2), target="quick")
    assert await peer("read_sum", "other", metadata) == 3 * LIMIT // 2
    assert not waiting.done()
    assert await peer("read_sum", "full", full[0]) == LIMIT * 2 // 3
    metadata, _ = await asyncio.wait_for(waiting, PATIENCE)
    assert await peer("read_sum", "late", metadata) == LIMIT * 2 // 3 * 2
    assert relay.stats()["slow"]["waited"] > 0
    await until(lambda: held(relay) == 0)


async def test_waiting_for_credit_ends_with_whom_it_waited_for(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = make_relay(backend, "hurried", **deadlines(monkeypatch, backend, wait=0.3, keep=300))
    try:
        await relay_io.write_blob(relay, "first", block(1, LIMIT - MIB), target="sleeper")
        with pytest.raises(RelayTimeout, match=r"'second' after 0\.3 s: .*sleeper"):
            await relay_io.write_blob(relay, "second", block(2, 2 * MIB), target="sleeper")
        relay.cleanup("first")
        await relay_io.write_blob(relay, "third", block(2, 2 * MIB), target="sleeper")
    finally:
        relay.close()


async def test_a_put_that_nobody_reads_says_so(relay: Any) -> None:
    _, put = await relay_io.write_blob(relay, "unread", block(1), target="nobody")
    with pytest.raises(RelayTimeout, match="'unread' was not read"):
        await put.wait_for_completion(0.05)
    relay.cleanup("unread")
    await put.wait_for_completion(PATIENCE)


@pytest.mark.parametrize("nbytes", [200_000, 3 * LIMIT], ids=["pooled", "own memory"])
async def test_a_cleanup_frees_what_is_unread_and_may_come_twice(relay: Any, peer: Peer, nbytes: int) -> None:
    gone, put = await relay_io.write_blob(relay, "aborted", block(1, nbytes), target="peer")
    other, _ = await relay_io.write_blob(relay, "kept", block(2, 200_000), target="other")
    for _ in range(3):
        relay.cleanup("aborted")
    relay.cleanup("never heard of")
    await put.wait_for_completion(PATIENCE)
    # Its memory goes to others, whose bytes must not be taken for those of the aborted payload.
    again, _ = await relay_io.write_blob(relay, "next", block(3, 200_000), target="peer")
    with pytest.raises(PeerError) as raised:
        await peer("read", "aborted", gone)
    assert raised.value.kind == "RelayReadError"
    assert await peer("read_sum", "kept", other) == 400_000
    assert await peer("read_sum", "next", again) == 600_000
    await until(lambda: held(relay) == 0)


async def test_aborting_in_flight_leaves_the_edge_as_it_was(relay: Any, peer: Peer) -> None:
    for round_ in range(5):
        metadata, _ = await relay_io.write_blob(relay, "aborted", block(1, LIMIT), target="peer")
        peer.send("read_sum", "aborted", metadata)
        if round_ % 2:
            await asyncio.sleep(0.002 * round_)
        relay.cleanup("aborted")
        try:
            assert await peer.answer() == LIMIT
        except PeerError as error:
            assert error.kind == "RelayReadError"  # noqa: PT017  either is right, depending on who was first
        theirs = await peer("write", "theirs", block(2, LIMIT))
        reading = asyncio.create_task(relay_io.read_blob(relay, "theirs", theirs))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        # The traceback of a read that had got its tensors holds them as long as there is the task.
        del reading
        await peer("cleanup", "theirs")
    metadata, put = await relay_io.write_blob(relay, "after", block(4, LIMIT), target="peer")
    assert await peer("read_sum", "after", metadata) == 4 * LIMIT
    await put.wait_for_completion(PATIENCE)
    await until(lambda: held(relay) == 0)


async def test_what_is_kept_too_long_is_given_up(
    backend: str, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = make_relay(backend, "forgetful", **deadlines(monkeypatch, backend, wait=PATIENCE, keep=0.2))
    try:
        metadata, _ = await relay_io.write_blob(relay, "old", block(1, LIMIT - MIB), target="peer")
        # There is no credit for this one before the first is given up.
        await asyncio.wait_for(relay_io.write_blob(relay, "new", block(2, 2 * MIB), target="peer"), PATIENCE)
        with pytest.raises(PeerError, match="RelayReadError"):
            await peer("read", "old", metadata)
    finally:
        relay.close()


async def test_a_closed_relay_refuses_and_whoever_waits_hears_of_it(backend: str) -> None:
    relay = make_relay(backend, "closing")
    await relay_io.write_blob(relay, "k", block(1, LIMIT - MIB), target="t")
    waiting = asyncio.create_task(relay_io.write_blob(relay, "l", block(1, 2 * MIB), target="t"))
    await asyncio.sleep(0)
    relay.close()
    relay.close()
    with pytest.raises(RelayError, match="closed"):
        await asyncio.wait_for(waiting, PATIENCE)
    with pytest.raises(RelayError, match="closed"):
        await relay_io.write_blob(relay, "m", block(1), target="t")


async def test_what_was_received_outlives_the_relay(backend: str, peer: Peer) -> None:
    relay = make_relay(backend, "short-lived")
    got = await relay_io.read_blob(relay, "k", await peer("write", "k", pattern(3, 500_000)))
    relay.close()
    del relay
    assert np.array_equal(got, pattern(3, 500_000))
    await peer("complete")
