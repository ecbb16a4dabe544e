"""The ledger of a networked relay's puts: what a request's end takes back, and what it leaves."""

from __future__ import annotations

import asyncio

import pytest
from waiting import rounds

from sglang_omni.relay import RelayTimeout
from sglang_omni.relay.base import RelayRevoked
from sglang_omni.relay.put_ledger import PutLedger


def issued(puts: PutLedger, *keys: str) -> None:
    for key in keys:
        puts.issue(object(), 10, "t", 0, key)


def test_a_requests_end_takes_back_its_chunks_and_no_other_requests() -> None:
    puts = PutLedger("relay", 1000, 1.0)
    issued(puts, "a", "a:stream:x:y:0", "a:stream:x:y:0:mask", "ab", "a%3Ab~1", "b:stream:a:y:0")
    assert puts.revoke("a:stream:x:y:0") == 1
    assert puts.revoke("a") == 2
    assert len(puts) == 3


async def test_a_put_that_waits_for_credit_ends_with_its_request() -> None:
    puts = PutLedger("relay", 100, 60.0)
    await puts.take_credit("t", 100, "first")
    waiting = [asyncio.create_task(puts.take_credit("t", 50, key)) for key in ("a:stream:x:t:0", "b")]
    await rounds()
    puts.revoke("a")
    with pytest.raises(RelayRevoked, match="its request has ended"):
        await asyncio.wait_for(waiting[0], 60)
    assert not waiting[1].done()
    puts.return_credit("t", 100)
    await asyncio.wait_for(waiting[1], 60)
    assert puts.stats()["t"] == {"held": 50, "waited": 2}


async def test_waiting_in_vain_names_who_has_not_read() -> None:
    puts = PutLedger("relay", 100, 0.05)
    await puts.take_credit("t", 100, "first")
    with pytest.raises(RelayTimeout, match=r"no credit for 'second' after 0\.05 s: 't' has 100 of 100 bytes"):
        await puts.take_credit("t", 1, "second")
