"""Relays between two hosts, which are network namespaces here: both ways, and over a link that is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from network_namespaces import Network, network, require_namespaces
from relay_peers import MIB, NETWORKED, Peer, PeerError, pattern, require
from waiting import PATIENCE

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    require_namespaces()
    with network("a", "b") as net:
        yield net


async def carry(sender: Peer, reader: Peer, seed: int) -> None:
    metadata = await sender("write", "k", pattern(seed, MIB))
    try:
        assert np.array_equal(await reader("read", "k", metadata), pattern(seed, MIB))
    finally:
        await sender("cleanup", "k")


async def until_carried(sender: Peer, reader: Peer) -> None:
    """Packets that were lost are sent again after a while, which one deadline may not reach."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await carry(sender, reader, 9)
            except PeerError as error:
                if error.kind not in ("RelayTimeout", "RelayReadError"):
                    raise


async def until_nothing_is_held(peer: Peer) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            usage = await peer("usage")
            if not usage["relay_held_bytes"] and not usage.get("relay_quarantined_reads"):
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("backend", NETWORKED)
async def test_payloads_cross_hosts_and_a_link_that_was_cut(
    backend: str, net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(backend)
    # These hosts have one kernel, which would copy from process to process.
    monkeypatch.setenv("UCX_TLS", "tcp")
    a, b = (
        Peer(backend, namespace=net.namespace(name), host=net.address(name), timeout_s=5) for name in "ab"
    )
    try:
        for seed, (sender, reader) in enumerate([(a, b), (b, a), (a, b)]):
            await carry(sender, reader, seed)
        metadata = await a("write", "k", pattern(5, MIB))
        net.unplug("b")
        with pytest.raises(PeerError) as raised:
            await b("read", "k", metadata)
        assert raised.value.kind in ("RelayTimeout", "RelayReadError")
        await a("cleanup", "k")
        net.plug("b")
        await until_carried(a, b)
        await until_carried(b, a)
        await until_nothing_is_held(a)
        await until_nothing_is_held(b)
        assert (await asyncio.to_thread(a.close), await asyncio.to_thread(b.close)) == (0, 0)
    finally:
        a.kill()
        b.kill()
