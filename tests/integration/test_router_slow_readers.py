"""Slow readers behind the router: others are served meanwhile, and their own answers arrive whole."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import pytest
from router_harness import (
    Seen,
    asking,
    comes_to,
    get,
    launched,
    load_of,
    post,
    read_answer,
    read_head,
    replicas,
    response,
    router,
    until,
)
from waiting import PATIENCE

PLACES = 2
# More than the kernels and hyper hold together, and less than the router holds of one answer.
LARGE = bytes(range(256)) * 80_000
# Clients are not cut in these tests' time, unless that is tested.
UNHURRIED = {"stall_timeout": 3600.0, "max_concurrent_requests": PLACES, "queue_size": 0}
CHUNK = b"10000\r\n" + b"x" * 65_536 + b"\r\n"


async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Waits for the router to take a large answer, as a real server does."""
    if "/whole" in seen.line:
        writer.write(response(LARGE))
    elif "/stream" in seen.line:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for start in range(0, len(LARGE), 4096):
            piece = LARGE[start : start + 4096]
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    else:
        writer.write(response())
    await writer.drain()


async def begin(url: str, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Asks, and takes no more than the beginning of the answer."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=4096)
    writer.write(request)
    return reader, writer


async def counted(url: str, name: str) -> int:
    page = (await get(url, "/metrics")).body.decode()
    return int(page.split(f"\nsglang_omni_{name} ")[1].split("\n")[0])


@pytest.mark.parametrize("path", ["/whole", "/stream"])
async def test_others_are_answered_while_answers_wait_for_their_clients(path: str) -> None:
    async with replicas(answer) as [replica], router(replica, **UNHURRIED) as url:
        slow = [await begin(url, f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()) for _ in range(PLACES)]
        for reader, _ in slow:
            await asyncio.wait_for(reader.readexactly(12), PATIENCE)

        async def is_answered() -> bool:
            return (await post(url)).status == 200

        await until(is_answered, "a request is answered beside slow readers")
        # What chooses a worker, and whoever watches, sees it idle.
        await comes_to(0, load_of, url)
        assert await counted(url, "router_requests_in_flight") == 0
        # Nothing is lost of the slow ones' answers.
        for reader, writer in slow:
            reader._buffer[:0] = b"HTTP/1.1 200"  # type: ignore[attr-defined]
            assert (await read_answer(reader)).body == LARGE
            writer.close()


async def test_the_next_request_waits_until_the_last_answer_is_taken() -> None:
    async with replicas(answer) as [replica], router(replica, **UNHURRIED) as url:
        reader, writer = await begin(url, b"GET /whole HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
        await until(lambda: len(replica.seen) > 0, "the first is asked")
        await comes_to(0, load_of, url)
        assert (await post(url)).status == 200
        assert len(replica.seen) == 2
        for _ in range(20):
            assert (await read_answer(reader)).body == LARGE
        writer.close()


async def test_an_answer_beyond_what_is_held_waits_at_its_worker() -> None:
    sent = 0

    async def endless(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(CHUNK)
            sent += len(CHUNK)
            await writer.drain()

    async with replicas(endless) as [replica], router(replica, **UNHURRIED) as url:
        reader, writer = await begin(url, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: sent >= 2**26, "the router holds 64 MiB")
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(1.0)
        # Beside what is held, sockets on both sides have some MB.
        assert sent < 2**26 + 2**24
        assert await load_of(url) == 1
        # It goes on as the client goes on, and ends with it.
        while sent == before:
            assert await asyncio.wait_for(reader.read(1 << 20), PATIENCE)
        writer.close()
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)
        await comes_to(0, load_of, url)


async def test_what_came_before_a_worker_broke_off_still_reaches_the_client() -> None:
    async def breaking(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if "/break" not in seen.line:
            writer.write(response())
            return
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {2 * len(LARGE)}\r\n\r\n".encode() + LARGE)
        await writer.drain()
        writer.close()

    async with replicas(breaking) as [replica], router(replica, **UNHURRIED) as url:
        slow = [await begin(url, b"GET /break HTTP/1.1\r\nHost: a\r\n\r\n") for _ in range(PLACES)]
        await until(lambda: len(replica.seen) == PLACES, "the worker has the requests")
        await comes_to(0, load_of, url)
        assert (await post(url)).status == 200
        for reader, writer in slow:
            await read_head(reader)
            came = b""
            with contextlib.suppress(ConnectionError):
                while piece := await asyncio.wait_for(reader.read(1 << 20), PATIENCE):
                    came += piece
            assert came == LARGE
            writer.close()


async def test_a_client_that_takes_nothing_of_its_answer_is_cut() -> None:
    async with replicas(answer) as [replica]:
        arguments = ("--worker-urls", replica.url, "--stall-timeout", "2", "--log-format", "json")
        async with launched(*arguments) as (process, url):
            _, writer = await begin(url, b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            assert process.stderr is not None
            while b"takes its answer too slowly" not in (line := await process.stderr.readline()):
                assert line, "the router has ended"
            assert b'"unread"' in line
            assert await counted(url, "router_slow_clients_total") == 1
            await comes_to(1, counted, url, "router_connections_open")
            writer.close()


async def test_a_client_that_is_slow_with_a_keep_alive_is_not_taken_for_an_idle_one() -> None:
    async with replicas(answer) as [replica], router(replica, keep_alive_timeout=0.4) as url:
        reader, writer = await asking(url, b"GET /whole HTTP/1.1\r\nHost: a\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: len(replica.seen) > 0, "the worker has the request")
        await comes_to(0, load_of, url)
        await asyncio.sleep(2.0)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await read_answer(reader)).body == LARGE
        # Its time without a request begins now.
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
