"""Clients that keep the router waiting: each has a deadline, and none slows another or holds a worker."""

from __future__ import annotations

import asyncio
import time

import pytest
from router_harness import (
    Seen,
    asking,
    assert_error,
    comes_to,
    connect,
    load_of,
    post,
    raw_worker,
    read_answer,
    read_head,
    replicas,
    response,
    router,
)
from waiting import PATIENCE


async def test_headers_that_do_not_arrive() -> None:
    async with replicas(None) as [replica], router(replica, header_timeout=0.4) as url:
        for start in (b"", b"POST / HTTP/1.1\r\nHost: a\r\nX-Sl"):
            reader, writer = await asking(url, start)
            assert_error(await read_answer(reader), 408, "in time")
            assert await reader.read() == b""
            writer.close()


async def test_an_answer_or_a_pause_between_requests_may_take_longer_than_headers() -> None:
    # The client here may itself be slow to send its head, though by far less than this.
    timeout, longer = 0.5, 0.8

    async def slow(_seen: object, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(longer)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async with replicas(slow) as [replica], router(replica, header_timeout=timeout) as url:
        reader, writer = await connect(url)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await read_head(reader))[0] == "HTTP/1.1 200 OK"
            await asyncio.sleep(longer)
        writer.close()
    assert len(replica.seen) == 2


async def test_slow_clients_do_not_slow_others() -> None:
    """Printed beside, for whoever runs it with -s: how much longer the others took."""

    async def fifty(url: str) -> float:
        started = time.perf_counter()
        answers = await asyncio.wait_for(asyncio.gather(*(post(url) for _ in range(50))), PATIENCE)
        assert {answer.status for answer in answers} == {200}
        return time.perf_counter() - started

    async with replicas(None) as [replica], router(replica) as url:
        alone = await fifty(url)
        slow = [await connect(url) for _ in range(400)]
        for _, writer in slow:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
        beside = await fifty(url)
        print(f"50 requests beside 400 slow clients took {beside / alone:.2f} times as long as alone")
        for _, writer in slow:
            writer.close()
    assert len(replica.seen) == 100


async def test_a_short_body_that_stalls_never_reaches_a_worker() -> None:
    async with replicas(None) as [replica], router(replica, stall_timeout=0.4) as url:
        reader, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf of it")
        assert_error(await read_answer(reader), 408, "body", "in time")
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
        assert replica.seen == []


async def test_a_long_body_that_stalls_frees_its_worker() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 20):
            pass
        gone.set()

    async with raw_worker(serve) as worker, router(worker, stall_timeout=1.0) as url:
        reader, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 3_000_000)
        await comes_to(1, load_of, url)
        assert_error(await read_answer(reader), 408, "body", "in time")
        await asyncio.wait_for(gone.wait(), PATIENCE)
        assert await load_of(url) == 0
        writer.close()


async def test_a_body_may_take_long_while_it_moves() -> None:
    # The client here may itself be slow, though by far less than this.
    stall, pieces, piece = 2.0, 6, b"x" * 2_000
    async with replicas(None) as [replica], router(replica, stall_timeout=stall) as url:
        reader, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (pieces * len(piece)))
        for _ in range(pieces):
            await asyncio.sleep(stall / 4)
            writer.write(piece)
        assert (await read_answer(reader)).status == 200
        writer.close()
        assert replica.seen[0].body == piece * pieces


async def test_a_worker_may_take_longer_than_a_client_may() -> None:
    async def slow(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.2)
        writer.write(response())

    async with replicas(slow) as [replica], router(replica, stall_timeout=0.3) as url:
        assert (await post(url, b"x" * 2_000_000)).status == 200
        assert len(replica.seen) == 1


async def test_an_answer_that_nobody_takes_is_given_up() -> None:
    left = asyncio.Event()

    async def endless(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
        finally:
            left.set()

    async with replicas(endless) as [replica], router(replica, stall_timeout=0.4) as url:
        _, writer = await connect(url)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.wait_for(left.wait(), PATIENCE)
        assert await load_of(url) == 0
        writer.close()


async def test_an_idle_connection_is_closed() -> None:
    async with replicas(None) as [replica], router(replica, keep_alive_timeout=0.4) as url:
        reader, writer = await connect(url)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await read_answer(reader)).status == 200
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
        assert len(replica.seen) == 2


async def test_an_administrator_that_stalls_is_waited_for_no_longer_than_headers_are() -> None:
    async with router(header_timeout=0.6, stall_timeout=3600.0) as url:
        for line in ("POST /workers", "DELETE /workers", "POST /workers/drain", "POST /abort_request"):
            reader, writer = await connect(url)
            head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert_error(await read_answer(reader), 408, "body", "in time")
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            writer.close()


async def dribble(writer: asyncio.StreamWriter) -> None:
    """Sends a byte every now and then."""
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("length", [1_000, 5_000_000])
async def test_uploads_that_dribble_hold_no_places(length: int) -> None:
    limits = {"max_concurrent_requests": 2, "queue_size": 0}
    async with replicas(None) as [replica], router(replica, **limits) as url:
        slow = []
        for _ in range(2):
            _, writer = await connect(url)
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length)
            slow.append((writer, asyncio.ensure_future(dribble(writer))))
        await asyncio.sleep(0.5)
        for _ in range(5):
            assert (await post(url)).status == 200
        assert len(replica.seen) == 5
        for writer, dribbling in slow:
            dribbling.cancel()
            writer.close()


async def test_an_upload_that_only_dribbles_is_given_up() -> None:
    """A byte now and then is not moving; the worker that has the beginning of it is free again."""

    async def upload(url: str, length: int) -> None:
        reader, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length)
        writer.write(b"x" * (length // 2))
        dribbling = asyncio.ensure_future(dribble(writer))
        assert_error(await read_answer(reader), 408, "body", "in time")
        dribbling.cancel()
        writer.close()

    async with replicas(None) as [replica], router(replica, stall_timeout=2.0) as url:
        await asyncio.gather(*(upload(url, length) for length in (1_000_000, 5_000_000)))
        assert await load_of(url) == 0
        assert replica.seen == []
