"""The shm relay between two processes, also when one of them is killed or stopped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import until

from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.relay import RelayReadError, create_relay
from sglang_omni.relay.shm.relay import ShmRelay

KIB = 1 << 10
# Bounds a wait for what must happen; what is tested is that it happens.
PATIENCE = 120.0


def _peer(connection: Connection) -> None:
    """Obeys ("write", key, obj) | ("read", key, metadata) | ("keep", key, metadata) | ("drop",)."""
    relay = create_relay("shm", engine_id="peer", slot_size_mb=4, credits=2)
    kept: list[Any] = []

    async def obey(command: str, *args: Any) -> Any:
        match command:
            case "write":
                metadata, _ = await relay_io.write_blob(relay, *args)
                return metadata
            case "read":
                return (await relay_io.read_blob(relay, *args)).sum().item()
            case "keep":
                kept.append(await relay_io.read_blob(relay, *args))
                return kept[-1].sum().item()
            case "drop":
                kept.clear()
                gc.collect()

    async def serve() -> None:
        while True:
            try:
                order = connection.recv()
            except EOFError:
                return
            connection.send(await obey(*order))

    asyncio.run(serve())


class Peer:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self.process = context.Process(target=_peer, args=(there,), daemon=True)
        self.process.start()
        there.close()

    def __call__(self, *order: Any) -> Any:
        self._here.send(order)
        assert self._here.poll(PATIENCE), f"no answer to {order[0]}"
        return self._here.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        self._here.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, signal.SIGCONT)
        self.process.join(10)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    """One for all tests that leave it alive: it takes seconds to start."""
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def relay() -> Iterator[ShmRelay]:
    relay = ShmRelay("here", slot_size_mb=4, credits=2)
    yield relay
    relay.close()


def block(value: int, kib: int = 1024) -> torch.Tensor:
    return torch.full((kib * KIB,), value, dtype=torch.uint8)


async def test_bytes_arrive_both_ways_and_room_returns(relay: ShmRelay, peer: Peer) -> None:
    for number in range(1, 40):
        sent = block(number, kib=number * 97)
        metadata, put = await relay_io.write_blob(relay, "k", sent)
        assert peer("read", "k", metadata) == sent.sum().item()
        await put.wait_for_completion(PATIENCE)
        back = await relay_io.read_blob(relay, "k", peer("write", "k", sent))
        assert torch.equal(back, sent)
    assert relay.arena.outstanding() == 0


async def test_views_hold_their_room_until_dropped_in_the_other_process(relay: ShmRelay, peer: Peer) -> None:
    metadata, put = await relay_io.write_blob(relay, "k", block(3))
    peer("keep", "k", metadata)
    await put.wait_for_completion(PATIENCE)
    assert relay.arena.outstanding() == 1
    metadata, _ = await relay_io.write_blob(relay, "l", block(4))
    assert peer("read", "l", metadata) == 4 << 20
    peer("drop")
    assert relay.arena.outstanding() == 0


async def test_a_put_waiting_for_room_wakes_when_the_peer_lets_go(relay: ShmRelay, peer: Peer) -> None:
    metadata, _ = await relay_io.write_blob(relay, "k", block(1, kib=3 << 10))
    peer("keep", "k", metadata)
    await relay_io.write_blob(relay, "unread", block(1, kib=3 << 10))
    waiting = asyncio.create_task(relay_io.write_blob(relay, "l", block(2, kib=6 << 10)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    peer("drop")
    await asyncio.wait_for(waiting, PATIENCE)


async def test_views_that_are_kept_stop_no_put_however_large(relay: ShmRelay, peer: Peer) -> None:
    metadata, _ = await relay_io.write_blob(relay, "k", block(1, kib=3 << 10))
    peer("keep", "k", metadata)
    for number, mib in enumerate((6, 20, 8), start=1):
        writing = relay_io.write_blob(relay, "l", block(number, mib << 10))
        metadata, _ = await asyncio.wait_for(writing, PATIENCE)
        assert peer("read", "l", metadata) == number * (mib << 20)
    assert relay.arena.outstanding() == 1
    peer("drop")


async def test_room_of_a_killed_reader_returns(relay: ShmRelay) -> None:
    reader = Peer()
    metadata, _ = await relay_io.write_blob(relay, "k", block(1, kib=3 << 10))
    reader("keep", "k", metadata)
    await relay_io.write_blob(relay, "unread", block(1, kib=3 << 10))
    waiting = asyncio.create_task(relay_io.write_blob(relay, "l", block(2, kib=6 << 10)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    reader.kill()
    await asyncio.wait_for(waiting, PATIENCE)
    relay.cleanup("l")
    relay.cleanup("unread")
    assert relay.arena.outstanding() == 0


async def test_views_outlive_a_killed_sender_and_what_was_not_read_is_an_error(relay: ShmRelay) -> None:
    before = _traces()
    sender = Peer()
    views = await relay_io.read_blob(relay, "a", sender("write", "a", block(7)))
    known = sender("write", "b", block(8))
    sender.kill()
    assert views.sum().item() == 7 << 20
    # The mapping is still here, so what lies in it can be read; a new reader has no way to it.
    assert (await relay_io.read_blob(relay, "b", known)).sum().item() == 8 << 20
    unknown = {**known, "relay_info": {**known["relay_info"], "arena": "sglang-omni-gone"}}
    with pytest.raises(RelayReadError, match="is it gone"):
        await relay_io.read_blob(relay, "c", unknown)
    assert _traces() <= before  # Others may have tidied up.


def _traces() -> set[str]:
    """Files named as arenas are."""
    names = "sglang-omni-" + 32 * "?"
    return {path.name for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob(names)}


async def test_a_stopped_reader_stops_only_its_own_edge(relay: ShmRelay, peer: Peer) -> None:
    reader = Peer()
    metadata, _ = await relay_io.write_blob(relay, "k", block(1, kib=6 << 10), target="stopped")
    reader("keep", "k", metadata)
    assert reader.process.pid is not None
    os.kill(reader.process.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(relay_io.write_blob(relay, "l", block(1, kib=6 << 10), target="stopped"))
    for number in range(1, 6):
        metadata, _ = await relay_io.write_blob(relay, "m", block(number, kib=6 << 10), target="going")
        assert peer("read", "m", metadata) == number * (6 << 20)
    reader.kill()
    await asyncio.wait_for(waiting, PATIENCE)


async def test_a_killed_reader_of_a_fan_out_leaves_it_to_the_others(relay: ShmRelay, peer: Peer) -> None:
    reader = Peer()
    sent = FanOut(relay, block(5, kib=3 << 10))
    written = {target: await sent.write("k", target) for target in ("killed", "kept", "late")}
    del sent
    assert relay.arena.written() < 4 << 20
    reader("keep", "k", written["killed"][0])
    peer("keep", "k", written["kept"][0])
    reader.kill()
    await until(lambda: relay.stats()["killed"]["held"] == 0)
    # Its room is in use still, so what comes next lies elsewhere.
    metadata, _ = await relay_io.write_blob(relay, "l", block(6, kib=3 << 10))
    assert peer("read", "l", metadata) == 6 * (3 << 20)
    assert (await relay_io.read_blob(relay, "k", written["late"][0])).sum().item() == 5 * (3 << 20)
    assert {edge: stats["held"] > 0 for edge, stats in relay.stats().items() if edge in written} == {
        "killed": False,
        "kept": True,
        "late": False,
    }
    peer("drop")
    assert relay.arena.outstanding() == 0
