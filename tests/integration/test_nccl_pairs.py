"""Pairs of the nccl relay that are not made to the end, and who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from relay_peers import MIB, PATIENCE, Peer, make_relay, pattern, require
from waiting import until

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
@pytest.mark.parametrize("moment", ["nccl_links:Endpoint.meet", "nccl_rendezvous:Rendezvous.get"])
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
