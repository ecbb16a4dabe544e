"""Peers that are killed, stopped, restarted or leave in the middle, and what each relay makes of that."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from relay_peers import (
    BACKENDS,
    MIB,
    NETWORKED,
    Peer,
    block,
    deadlines,
    make_relay,
    pattern,
    require,
)
from waiting import PATIENCE, until

from sglang_omni.pipeline import relay_io
from sglang_omni.relay import RelayError, RelayReadError, RelayTimeout

# Takes long enough to be in the middle of.
LARGE = 96 * MIB


@pytest.fixture
def peers(request: pytest.FixtureRequest) -> Iterator[Any]:
    """``peers(backend, ...)`` starts one; all are ended."""
    require(request.node.callspec.params["backend"])
    started: list[Peer] = []

    def start(backend: str, **options: Any) -> Peer:
        started.append(Peer(backend, **options))
        return started[-1]

    yield start
    for peer in started:
        peer.kill()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_peer_killed_while_idle_costs_only_what_was_announced_to_it(backend: str, peers: Any) -> None:
    relay, killed, other = make_relay(backend, "here"), peers(backend), peers(backend)
    try:
        unread = await killed("write", "theirs", block(7, 300_000))
        metadata, put = await relay_io.write_blob(relay, "k", block(1), target="killed")
        assert await killed("read_sum", "k", metadata) == MIB
        # The reader's word that it has read may be later than its answer here.
        await put.wait_for_completion(PATIENCE)
        await relay_io.write_blob(relay, "lost", block(1), target="killed")
        killed.kill()
        if backend in NETWORKED:
            with pytest.raises(RelayError):
                await relay_io.read_blob(relay, "theirs", unread)
        relay.cleanup("lost")
        for value in range(1, 4):
            metadata, put = await relay_io.write_blob(relay, "k", block(value), target="other")
            assert await other("read_sum", "k", metadata) == value * MIB
            await put.wait_for_completion(PATIENCE)
            back = await relay_io.read_blob(relay, "k", await other("write", "k", block(value)))
            assert back.sum(dtype=np.int64) == value * MIB
            del back
        await until(lambda: relay.usage().get("relay_held_bytes", 0) == 0)
    finally:
        relay.close()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_sender_killed_in_the_middle_fails_the_read_and_another_takes_its_name(
    backend: str, peers: Any
) -> None:
    relay, sender = make_relay(backend, "here", timeout_s=PATIENCE), peers(backend)
    try:
        metadata = await sender("write", "k", block(1, LARGE))
        reading = asyncio.create_task(relay_io.read_blob(relay, "k", metadata))
        await asyncio.sleep(0.01)
        sender.kill()
        # It may have been quicker than the kill. It may not give other bytes, or fail by its deadline.
        with contextlib.suppress(RelayReadError):
            assert (await asyncio.wait_for(reading, PATIENCE / 2)).sum(dtype=np.int64) == LARGE
        again = peers(backend)
        got = await relay_io.read_blob(relay, "k", await again("write", "k", pattern(1, MIB)))
        assert bytes(got) == bytes(pattern(1, MIB))
        await again("complete")
    finally:
        relay.close()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_reader_killed_in_the_middle_leaves_the_sender_as_it_was(backend: str, peers: Any) -> None:
    relay, killed = make_relay(backend, "here"), peers(backend)
    try:
        metadata, _ = await relay_io.write_blob(relay, "lost", block(1, LARGE), target="killed")
        killed.send("read_sum", "lost", metadata)
        await asyncio.sleep(0.02)
        killed.kill()
        # As the stage does when it hears that its target is gone.
        relay.cleanup("lost")
        again = peers(backend)
        metadata, put = await relay_io.write_blob(relay, "k", block(3), target="killed")
        assert await again("read_sum", "k", metadata) == 3 * MIB
        await put.wait_for_completion(PATIENCE)
        await until(lambda: relay.usage().get("relay_held_bytes", 0) == 0)
    finally:
        relay.close()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_stopped_sender_costs_a_read_its_deadline_and_nothing_else(
    backend: str, peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel copies between two processes of a host even where one is stopped.
    monkeypatch.setenv("UCX_TLS", "tcp")
    relay = make_relay(backend, "here", **deadlines(monkeypatch, backend, wait=3, keep=300))
    stopped, other = peers(backend), peers(backend)
    try:
        warm = await relay_io.read_blob(relay, "warm", await stopped("write", "warm", block(1, 150_000)))
        assert warm.sum(dtype=np.int64) == 150_000
        await stopped("complete")
        metadata = await stopped("write", "k", pattern(5, 2 * MIB))
        stopped.stop()
        late = asyncio.create_task(relay_io.read_blob(relay, "k", metadata))
        for value in range(1, 4):
            got = await relay_io.read_blob(relay, "o", await other("write", "o", block(value)))
            assert got.sum(dtype=np.int64) == value * MIB
        if backend in NETWORKED:
            with pytest.raises(RelayError):
                await asyncio.wait_for(late, PATIENCE)
        else:
            assert bytes(await late) == bytes(pattern(5, 2 * MIB))
        # Whatever still arrives of it arrives nowhere that is used.
        kept = await relay_io.read_blob(relay, "o", await other("write", "o", pattern(6, 2 * MIB)))
        stopped.go_on()
        assert (
            bytes(await relay_io.read_blob(relay, "k", await stopped("write", "k", block(9))))
            == b"\x09" * MIB
        )
        assert bytes(kept) == bytes(pattern(6, 2 * MIB))
        await until(lambda: relay.usage().get("relay_quarantined_reads", 0) == 0)
    finally:
        relay.close()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_stopped_reader_stops_only_its_own_edge(
    backend: str, peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = make_relay(backend, "here", **deadlines(monkeypatch, backend, wait=1, keep=300))
    stopped, other = peers(backend), peers(backend)
    try:
        await stopped("usage")
        stopped.stop()
        await relay_io.write_blob(relay, "k", block(1, 3 * MIB), target="stopped")
        with pytest.raises(RelayTimeout, match="stopped"):
            await relay_io.write_blob(relay, "l", block(1, 3 * MIB), target="stopped")
        for value in range(1, 6):
            metadata, _ = await relay_io.write_blob(relay, "m", block(value, 3 * MIB), target="going")
            assert await other("read_sum", "m", metadata) == value * 3 * MIB
    finally:
        relay.close()


@pytest.mark.parametrize("order", ["exit", pytest.param("close", marks=pytest.mark.long)])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_leaving_with_transfers_in_flight_is_quick_and_clean(
    backend: str, order: str, peers: Any
) -> None:
    relay, leaver = make_relay(backend, "here"), peers(backend)
    try:
        # In flight: one that it reads, one that is read from it, and one that nobody reads.
        theirs = await leaver("write", "theirs", block(2, LARGE), "here")
        await leaver("write", "unread", block(3), "nobody")
        metadata, _ = await relay_io.write_blob(relay, "k", block(1, LARGE), target="leaver")
        await leaver("begin_read", "k", metadata)
        reading = asyncio.create_task(relay_io.read_blob(relay, "theirs", theirs))
        await asyncio.sleep(0.005)
        leaver.send(order)
        with contextlib.suppress(RelayError):
            assert (await asyncio.wait_for(reading, PATIENCE)).sum(dtype=np.int64) == 2 * LARGE
        if order == "close":
            await leaver.answer()
        assert await asyncio.to_thread(leaver.close) == 0
    finally:
        relay.close()


async def test_what_mooncakes_engine_raises_is_the_reads_error(monkeypatch: pytest.MonkeyPatch) -> None:
    require("mooncake")

    def fail(read: Any) -> int:
        raise OSError("the engine's own words")

    monkeypatch.setattr("sglang_omni.relay.one_sided.mooncake._try_twice", fail)
    relay = make_relay("mooncake", "here")
    try:
        metadata, _ = await relay_io.write_blob(relay, "k", block(1))
        with pytest.raises(OSError, match="the engine's own words"):
            await relay_io.read_blob(relay, "k", metadata)
    finally:
        relay.close()


_DROPPED = """
import asyncio, sys
import numpy as np
from relay_peers import make_relay
from sglang_omni.pipeline import relay_io
async def main():
    a, b = make_relay(sys.argv[1], "a"), make_relay(sys.argv[1], "b")
    for value in range(3):
        metadata, _ = await relay_io.write_blob(a, "k", np.full(150_000, value, np.uint8))
        kept.append(await relay_io.read_blob(b, "k", metadata))
    await relay_io.write_blob(a, "unread", np.ones(100_000))
kept = []
asyncio.run(main())
assert [int(array[-1]) for array in kept] == [0, 1, 2]
print("fine")
"""


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_process_that_closes_nothing_exits_with_status_0(backend: str) -> None:
    require(backend)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DROPPED, backend, stdout=-1, stderr=-1, env=_environment()
    )
    out, err = await asyncio.wait_for(process.communicate(), 2 * PATIENCE)
    assert (process.returncode, out) == (0, b"fine\n"), err.decode()


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
