"""`max_concurrent_requests`: what is beyond it waits or is refused; every end gives its place back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from router_harness import (
    PATIENCE,
    Answer,
    Replica,
    Seen,
    asking,
    assert_error,
    comes_to,
    get,
    metric,
    post,
    replicas,
    response,
    router,
    status_of,
    until,
    websocket_echo,
)


class Held(Replica):
    """Answers each request once it is let go."""

    def __init__(self) -> None:
        super().__init__(self.hold)
        self.go = asyncio.Semaphore(0)

    async def hold(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        await self.go.acquire()
        writer.write(response(seen.body))


@contextlib.asynccontextmanager
async def held(**options: int | float) -> AsyncIterator[tuple[Held, str]]:
    """A worker that holds what it gets, and the URL of a router in front of it."""
    replica = Held()
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


async def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_concurrent_requests: 0 would refuse every request"):
        async with router(max_concurrent_requests=0):
            pass
