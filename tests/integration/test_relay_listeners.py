"""An engine that has run out of files while somebody connected to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import numpy as np
import psutil
import pytest
from relay_peers import MIB, Peer, PeerError, pattern, require
from waiting import until


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
