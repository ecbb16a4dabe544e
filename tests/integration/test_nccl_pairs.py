"""Pairs of the nccl relay that are not made to the end; and engines that ran out of files in between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from relay_peers import MIB, Peer, PeerError, make_relay, pattern, require
from waiting import PATIENCE, until

from sglang_omni.pipeline import relay_io
from sglang_omni.relay import RelayError, RelayReadError
from sglang_omni.relay.nccl import groups as nccl_groups
from sglang_omni.relay.nccl import links as nccl_links

# Nothing may end by a deadline here. A thread that was left behind takes as long.
MEETING = 30.0


@pytest.fixture
def relay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    require("nccl")
    monkeypatch.setattr(nccl_links, "_MEET_SECONDS", MEETING)
    relay = make_relay("nccl", request.node.name, timeout_s=PATIENCE)
    yield relay
    relay.close()


@pytest.fixture(scope="module")
def other() -> Iterator[Peer]:
    peer = Peer("nccl")
    yield peer
    assert peer.close() == 0


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer("nccl")
    yield peer
    peer.kill()


# Before it has said where it listens, and when its engine is about to connect.
@pytest.mark.parametrize("moment", ["nccl.links:Endpoint.meet", "nccl.rendezvous:Rendezvous.get"])
async def test_a_sender_killed_while_a_pair_is_made_keeps_nobody_waiting(
    moment: str, relay: Any, peer: Peer, other: Peer
) -> None:
    await peer("stop_in", f"sglang_omni.relay.{moment}")
    lost = asyncio.create_task(relay_io.read_blob(relay, "k", await peer("write", "k", pattern(1, MIB))))
    await until(lambda: psutil.Process(peer.process.pid).status() == psutil.STATUS_STOPPED)
    metadata = await other("write", "o", pattern(2, MIB))
    assert np.array_equal(await relay_io.read_blob(relay, "o", metadata), pattern(2, MIB))
    assert not lost.done()
    peer.kill()
    # Not by a deadline: that would be a RelayTimeout, and none is in reach.
    with pytest.raises(RelayReadError):
        await asyncio.wait_for(lost, MEETING / 2)


async def test_closing_does_not_wait_for_a_pair_that_is_being_made(relay: Any, peer: Peer) -> None:
    await peer("stop_in", "sglang_omni.relay.nccl.links:Endpoint.meet")
    lost = asyncio.create_task(relay_io.read_blob(relay, "k", await peer("write", "k", pattern(1, MIB))))
    await until(lambda: psutil.Process(peer.process.pid).status() == psutil.STATUS_STOPPED)
    relay.close()
    with pytest.raises(RelayError, match="was closed"):
        await lost
    # Its threads have ended as well: none is left for the end of the process to wait for.
    gone = until(lambda: not any(thread.name.startswith(relay.name) for thread in nccl_links._threads))
    await asyncio.wait_for(gone, MEETING / 2)


async def test_a_sender_that_is_out_of_files_makes_no_pair_and_goes_on(relay: Any, peer: Peer) -> None:
    metadata = await peer("write", "k", pattern(3, MIB))
    for spare in range(1, 14):
        limit = await peer("spare_files", spare)
        with pytest.raises(RelayReadError):
            await relay_io.read_blob(relay, "k", metadata)
        await peer("limit_files", limit)
    assert np.array_equal(await relay_io.read_blob(relay, "k", metadata), pattern(3, MIB))


async def test_a_sender_that_sends_less_than_it_has_announced_is_left(
    relay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = make_relay("nccl", "sender")
    try:
        whole = nccl_groups.PairGroup.begin_send
        for nbytes in (MIB, 100_000, 17):
            payload = torch.from_numpy(pattern(4, nbytes))
            put = await sender.put_async(payload)
            with monkeypatch.context() as lying:
                lying.setattr(
                    nccl_groups.PairGroup, "begin_send", lambda group, tensor: whole(group, tensor[:-16])
                )
                with pytest.raises(RelayReadError, match=f"it sent less than the {nbytes} bytes"):
                    await relay.get_payload(put.metadata)
            # What has not been acknowledged is there for whoever asks again.
            assert np.array_equal(await relay.get_payload(put.metadata), payload.numpy())
    finally:
        sender.close()


def ports(peer: Peer) -> list[int]:
    """Those at which it takes connections."""
    found = psutil.Process(peer.process.pid).net_connections("tcp")
    return [connection.laddr.port for connection in found if connection.status == psutil.CONN_LISTEN]


async def carry(sender: Peer, reader: Peer, seed: int) -> None:
    metadata = await sender("write", "k", pattern(seed, MIB))
    assert np.array_equal(await reader("read", "k", metadata), pattern(seed, MIB))


@pytest.mark.parametrize("backend", ["nixl", "mooncake"])
async def test_peers_reach_it_again_once_it_has_files(
    backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    require(backend)
    a, b, late = Peer(backend), Peer(backend), Peer(backend)
    try:
        await carry(a, b, 1)
        announced_before = await a("write", "before", pattern(2, MIB))
        few = await a("limit_files", 3)
        for port in ports(a):
            # Taken by the kernel; the engine finds that it has no file for it.
            socket.create_connection(("127.0.0.1", port)).close()
        if backend == "nixl":
            await until(lambda: not ports(a))
            with pytest.raises(PeerError, match=r"cannot be reached by any peer.*Too many open files"):
                await a("write", "k", pattern(3, MIB))
        await a("limit_files", few)
        await carry(a, late, 4)
        await carry(late, a, 5)
        await carry(b, a, 6)
        assert np.array_equal(await b("read", "before", announced_before), pattern(2, MIB))
        for peer in (a, b, late):
            await peer("complete")
            assert (await peer("usage"))["relay_held_bytes"] == 0
        assert [await asyncio.to_thread(peer.close) for peer in (a, b, late)] == [0, 0, 0]
    finally:
        for peer in (a, b, late):
            peer.kill()
    # A program's stdout is its own.
    assert capfd.readouterr().out == ""


async def test_a_reader_survives_a_sender_that_runs_out_of_files_as_it_connects() -> None:
    require("nixl")
    sender, reader = Peer("nixl"), Peer("nixl")
    try:
        # Each time the sender has a new engine, and the reader has to connect.
        for key in map(str, range(6)):
            metadata = await sender("write", key, pattern(1, MIB))
            before = await sender("limit_files", psutil.Process(sender.process.pid).num_fds())
            with contextlib.suppress(PeerError):
                await reader("read_sum", key, metadata)
            await sender("limit_files", before)
            await sender("cleanup", key)
        await carry(sender, reader, 2)
        assert [await asyncio.to_thread(peer.close) for peer in (sender, reader)] == [0, 0]
    finally:
        for peer in (sender, reader):
            peer.kill()
