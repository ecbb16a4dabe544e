"""Requests the router refuses, or has wait: for their size and form, and for how many are in flight."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from router_harness import (
    Answer,
    HoldingReplica,
    Replica,
    Seen,
    asking,
    assert_error,
    comes_to,
    get,
    metric,
    post,
    read_answer,
    replicas,
    router,
    send_raw,
    status_of,
    until,
    websocket_echo,
)
from waiting import PATIENCE


async def test_announced_body_over_the_limit() -> None:
    async with replicas(None) as [replica], router(replica, max_body_bytes=1000) as url:
        assert_error(await post(url, b"x" * 1001), 413, "1000 bytes")
        assert (await post(url, b"x" * 1000)).status == 200
    assert len(replica.seen) == 1


async def test_a_client_that_is_still_sending_can_read_why_it_was_refused() -> None:
    async with replicas(None) as [replica], router(replica, max_body_bytes=1000) as url:
        reader, writer = await asking(url, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n")
        for _ in range(20):
            writer.write(b"x" * 1_000_000)
            await writer.drain()
        assert_error(await read_answer(reader), 413, "1000 bytes")
        writer.close()
    assert replica.seen == []


@pytest.mark.parametrize("policy", ["round_robin", "cache_aware"])
async def test_chunked_body_over_the_limit(policy: str) -> None:
    head = (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b"".join(b"%x\r\n%s\r\n" % (600, b"x" * 600) for _ in range(2)) + b"0\r\n\r\n"
    async with replicas(None) as [replica], router(replica, max_body_bytes=1000, policy=policy) as url:
        assert_error(await send_raw(url, head + body), 413, "1000 bytes")
        assert (await post(url)).status == 200
    assert [seen.body for seen in replica.seen] == [b"{}"]


ASK = b"GET / HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("head", "status", "words"),
    [
        (ASK + b"X-Big: " + b"v" * 70_000, 431, "headers"),
        (ASK + b"X-Big: " + b"v" * 600_000, 431, "headers"),
        (ASK + b"\r\n".join(b"X-%d: 1" % n for n in range(200)), 431, "headers"),
        (b"nonsense", 400, "HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nbad header", 400, "HTTP/1.1"),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443", 405, "CONNECT"),
    ],
    ids=["one of 70 KB", "one of 600 KB", "200 headers", "nonsense", "a bad header", "CONNECT"],
)
async def test_heads_that_are_refused(head: bytes, status: int, words: str) -> None:
    async with replicas(None) as [replica], router(replica) as url:
        assert_error(await send_raw(url, head + b"\r\n\r\n"), status, words)
    assert replica.seen == []


async def test_wrong_method_on_the_routers_own_path() -> None:
    async with router() as url:
        answer = await send_raw(url, b"PUT /workers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        assert_error(answer, 405, "GET, POST, DELETE")
        assert answer.header("allow") == "GET, POST, DELETE"
        assert (await get(url, "/workers")).status == 200


@contextlib.asynccontextmanager
async def held(**options: int | float) -> AsyncIterator[tuple[HoldingReplica, str]]:
    """A worker that holds what it gets, and the URL of a router in front of it."""
    replica = HoldingReplica()
    await replica.start()
    try:
        async with router(replica, **options) as url:
            yield replica, url
    finally:
        await replica.stop()


async def arrived(replica: Replica, count: int) -> None:
    await until(lambda: len(replica.seen) >= count, f"{count} requests at the worker")


def assert_refused(answer: Answer, words: str) -> None:
    assert_error(answer, 429, words, code="rate_limit_exceeded")
    assert answer.header("retry-after") == "1"


async def test_beyond_the_limit_and_the_queue_is_429() -> None:
    async with held(max_concurrent_requests=2, queue_size=1) as (replica, url):
        asked = [asyncio.ensure_future(post(url, b"%d" % n)) for n in range(2)]
        await arrived(replica, 2)
        asked.append(asyncio.ensure_future(post(url, b"2")))
        await comes_to(1, metric, url, "requests_waiting")
        for _ in range(3):
            assert_refused(
                await post(url, b"x" * 200_000), "2 requests are in flight, which is the limit, and 1"
            )
        assert await metric(url, "requests_in_flight") == 2
        # The router's own answers are not limited.
        assert (await get(url, "/health")).status in (200, 503)
        assert (await get(url, "/workers")).status == 200
        for _ in range(3):
            replica.go.release()
        answers = await asyncio.wait_for(asyncio.gather(*asked), PATIENCE)
        assert [(answer.status, answer.body) for answer in answers] == [(200, b"0"), (200, b"1"), (200, b"2")]
        await comes_to(0, metric, url, "requests_in_flight")
    assert len(replica.seen) == 3


async def test_those_who_wait_get_their_turn_in_order() -> None:
    async with held(max_concurrent_requests=1) as (replica, url):
        asked = []
        for number in range(5):
            asked.append(asyncio.ensure_future(post(url, b"%d" % number)))
            await comes_to(number, metric, url, "requests_waiting") if number else await arrived(replica, 1)
        for _ in range(5):
            replica.go.release()
        await asyncio.wait_for(asyncio.gather(*asked), PATIENCE)
    assert [seen.body for seen in replica.seen] == [b"0", b"1", b"2", b"3", b"4"]


async def test_without_a_queue_nobody_waits() -> None:
    async with held(max_concurrent_requests=1, queue_size=0) as (replica, url):
        asked = asyncio.ensure_future(post(url))
        await arrived(replica, 1)
        assert_refused(await post(url), "1 requests are in flight, which is the limit")
        replica.go.release()
        assert (await asked).status == 200
        replica.go.release()
        assert (await post(url)).status == 200


async def test_a_wait_ends() -> None:
    async with held(max_concurrent_requests=1, queue_timeout=0.2) as (replica, url):
        asked = asyncio.ensure_future(post(url))
        await arrived(replica, 1)
        assert_refused(await post(url), "none ended within 0.2 s")
        assert await metric(url, "requests_waiting") == 0
        replica.go.release()
        assert (await asked).status == 200


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    async with held(max_concurrent_requests=1, queue_size=0) as (replica, url):
        _, writer = await asking(url, b"GET /v1/x HTTP/1.1\r\nHost: a\r\n\r\n")
        await arrived(replica, 1)
        writer.close()
        await comes_to(0, metric, url, "requests_in_flight")
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)  # Or the first request takes the permit.
        replica.go.release()
        assert (await post(url)).status == 200


async def test_a_worker_that_fails_gives_the_place_back() -> None:
    async def cut(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")
        await writer.drain()
        writer.transport.abort()

    async with (
        replicas(cut) as [replica],
        router(replica, "http://127.0.0.1:1", max_concurrent_requests=1, queue_size=0) as url,
    ):
        for _ in range(4):
            reader, writer = await asking(url, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
            await comes_to(0, metric, url, "requests_in_flight")
    assert len(replica.seen) == 4


async def test_a_websocket_holds_its_place_to_its_end() -> None:
    options = {"max_concurrent_requests": 1, "queue_size": 0}
    async with (
        websocket_echo() as worker,
        router(worker, **options) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.ws_connect(f"{url}/v1/realtime") as socket:
            await socket.send_str("hello")
            assert await socket.receive_str() == "hello"
            assert await metric(url, "requests_in_flight") == 1
            assert_refused(await post(url), "which is the limit")

        await comes_to(404, status_of, url, "/nothing")
