"""Views of the shm relay that are held by another process, also by one that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay_peers import MIB, Peer, block
from waiting import PATIENCE, rounds, until

from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.relay import RelayReadError
from sglang_omni.relay.shm.relay import ShmRelay


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    """One for all tests that leave it alive: it takes a second to start."""
    peer = Peer("shm")
    yield peer
    peer.close()


@pytest.fixture
def doomed() -> Iterator[Peer]:
    peer = Peer("shm")
    yield peer
    peer.kill()


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("here", slot_size_mb=4, credits=2)
    yield relay
    relay.close()


async def write(relay: ShmRelay, key: str, value: int, mib: int) -> Any:
    metadata, _ = await relay_io.write_blob(relay, key, block(value, mib * MIB))
    return metadata


async def test_views_hold_their_room_until_dropped_and_stop_no_put_however_large(
    relay: ShmRelay, peer: Peer
) -> None:
    metadata, put = await relay_io.write_blob(relay, "k", block(3, 3 * MIB))
    assert await peer("keep", "k", metadata) == 9 * MIB
    await put.wait_for_completion(PATIENCE)
    for number, mib in enumerate((1, 6, 20, 8), start=1):
        metadata = await asyncio.wait_for(write(relay, "l", number, mib), PATIENCE)
        assert await peer("read_sum", "l", metadata) == number * mib * MIB
    assert relay.arena.outstanding() == 1
    await peer("drop")
    assert relay.arena.outstanding() == 0


async def lets_go(peer: Peer) -> None:
    await peer("drop")


async def dies(peer: Peer) -> None:
    peer.kill()


@pytest.mark.parametrize("end", [lets_go, dies])
async def test_a_put_that_waits_for_room_has_it_once_the_reader_lets_go_or_dies(
    end: Callable[[Peer], Any], relay: ShmRelay, doomed: Peer
) -> None:
    await doomed("keep", "k", await write(relay, "k", 1, 3))
    await write(relay, "unread", 1, 3)
    waiting = asyncio.create_task(write(relay, "l", 2, 6))
    await rounds()
    assert not waiting.done()
    await end(doomed)
    await asyncio.wait_for(waiting, PATIENCE)
    relay.cleanup("l")
    relay.cleanup("unread")
    assert relay.arena.outstanding() == 0


async def test_views_outlive_a_killed_sender_and_what_was_not_read_is_an_error(
    relay: ShmRelay, doomed: Peer
) -> None:
    before = _traces()
    views = await relay_io.read_blob(relay, "a", await doomed("write", "a", block(7)))
    known = await doomed("write", "b", block(8))
    doomed.kill()
    assert views.sum(dtype=np.int64) == 7 * MIB
    # The mapping is still here, so what lies in it can be read; a new reader has no way to it.
    assert (await relay_io.read_blob(relay, "b", known)).sum(dtype=np.int64) == 8 * MIB
    unknown = {**known, "relay_info": {**known["relay_info"], "arena": "sglang-omni-gone"}}
    with pytest.raises(RelayReadError, match="is it gone"):
        await relay_io.read_blob(relay, "c", unknown)
    assert _traces() <= before


def _traces() -> set[str]:
    """Files named as arenas are, which no arena ever leaves."""
    names = "sglang-omni-" + 32 * "?"
    return {path.name for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob(names)}


async def test_a_killed_reader_of_a_fan_out_leaves_it_to_the_others(
    relay: ShmRelay, peer: Peer, doomed: Peer
) -> None:
    sent = FanOut(relay, block(5, 3 * MIB))
    written = {target: await sent.write("k", target) for target in ("killed", "kept", "late")}
    del sent
    assert relay.arena.written() < 4 * MIB
    await doomed("keep", "k", written["killed"][0])
    await peer("keep", "k", written["kept"][0])
    doomed.kill()
    await until(lambda: relay.stats()["killed"]["held"] == 0)
    # Its room is in use still, so what comes next lies elsewhere.
    assert await peer("read_sum", "l", await write(relay, "l", 6, 3)) == 18 * MIB
    late = await relay_io.read_blob(relay, "k", written["late"][0])
    assert late.sum(dtype=np.int64) == 15 * MIB
    del late
    assert {edge: stats["held"] > 0 for edge, stats in relay.stats().items() if edge in written} == {
        "killed": False,
        "kept": True,
        "late": False,
    }
    await peer("drop")
    assert relay.arena.outstanding() == 0
