"""What is sent again on another connection, because the one that was kept for it had been closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from router_harness import Seen, get, metric, post, replicas, response, router


def breaking_later(breaks: list[int]) -> Any:
    """Answers, but reads the requests of these numbers, works on them for a while, and breaks off."""
    count = 0

    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        if count in breaks:
            await asyncio.sleep(0.3)
            writer.transport.abort()
        else:
            writer.write(response(b"%d" % count))

    return handler


@pytest.mark.parametrize("options", [{"disable_retries": True}, {"retry_max_retries": 0}])
async def test_a_request_that_may_have_been_read_is_not_sent_again(options: dict[str, Any]) -> None:
    async with replicas(breaking_later([2])) as [replica], router(replica, **options) as url:
        assert (await post(url)).body == b"1"
        answer = await post(url)
        assert answer.status == 502
        assert len(replica.seen) == 2
        assert await metric(url, "retries_total") == 0
        assert (await post(url)).body == b"3"


async def test_one_that_is_sent_again_is_a_retry() -> None:
    async with replicas(breaking_later([2])) as [replica], router(replica) as url:
        assert (await post(url)).body == b"1"
        assert (await post(url)).body == b"3"
        assert len(replica.seen) == 3
        assert await metric(url, "retries_total") == 1


async def test_a_worker_gets_one_more_chance_and_no_third() -> None:
    async with replicas(breaking_later([2, 3, 4])) as [replica], router(replica) as url:
        assert (await post(url)).body == b"1"
        assert (await post(url)).status == 502
        assert len(replica.seen) == 3


async def test_what_changes_nothing_may_be_asked_for_again() -> None:
    async with replicas(breaking_later([2])) as [replica], router(replica, disable_retries=True) as url:
        assert (await get(url, "/x")).body == b"1"
        assert (await get(url, "/x")).body == b"3"


async def test_a_connection_that_was_closed_while_idle_costs_nothing() -> None:
    async def once(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"once"))
        await writer.drain()
        writer.close()

    async with replicas(once) as [replica], router(replica, disable_retries=True) as url:
        for _ in range(30):
            assert (await post(url)).body == b"once"
            await asyncio.sleep(0.01)
        assert len(replica.seen) == 30
        assert await metric(url, "retries_total") == 0


async def test_a_kept_connection_is_looked_at_before_it_is_used() -> None:
    """The lane is kept busy by other requests, so that it does not hear of the end by itself."""

    async def once(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"once"))
        await writer.drain()
        await asyncio.sleep(0.4)
        writer.close()

    async with replicas(once) as [replica], router(replica, disable_retries=True) as url:
        for _ in range(4):
            answers = await asyncio.gather(*(post(url) for _ in range(8)))
            assert {answer.status for answer in answers} == {200}
            await asyncio.sleep(0.6)
        assert len(replica.seen) == 32
