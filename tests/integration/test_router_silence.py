"""Streams that fall silent, and requests that change protocols: bytes both ways, and how either side ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from router_harness import (
    Handler,
    Seen,
    asking,
    becomes,
    comes_to,
    connect,
    get,
    load_of,
    metric,
    post,
    raw_worker,
    read_head,
    replicas,
    response,
    router,
    websocket_echo,
)
from waiting import PATIENCE

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAMED = b'{"stream": true}'


def event(text: str) -> bytes:
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def streaming(*events: str, pause: float = 0.0, ends: bool = True) -> Handler:
    """Sends its head at once, then the events, each after a pause; then its end, or nothing any more."""

    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for text in events:
            await asyncio.sleep(pause)
            writer.write(event(text))
        if not ends:
            await asyncio.sleep(PATIENCE)
        writer.write(b"0\r\n\r\n")

    return handler


async def request(url: str, body: bytes = STREAMED) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(url)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def test_a_stream_that_falls_silent_is_broken_off() -> None:
    stops = streaming("one", ends=False)
    async with replicas(stops) as [replica], router(replica, stream_idle_timeout=0.6) as url:
        reader, writer = await request(url)
        reported = await asyncio.wait_for(reader.read(), PATIENCE)
        assert reported.endswith(b"data: one\n\n\r\n")  # And no end of a whole answer.
        writer.close()
        await comes_to(0, load_of, url)
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)
        ended = (await get(url, "/metrics")).body.decode()
        assert 'requests_ended_total{how="idle_timeout"} 1' in ended


async def test_an_answer_of_known_length_that_falls_silent_is_broken_off() -> None:
    async def stops(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await asyncio.sleep(PATIENCE)

    async with replicas(stops) as [replica], router(replica, stream_idle_timeout=0.6) as url:
        reader, writer = await request(url)
        assert (await asyncio.wait_for(reader.read(), PATIENCE)).endswith(b"\r\n\r\nhalf")
        writer.close()


@pytest.mark.parametrize("is_silent", [True, False])
async def test_a_client_without_chunks_sees_that_its_answer_is_not_whole(is_silent: bool) -> None:
    """Of HTTP/1.0: to it the end of the connection is that of the answer, unless it is a reset."""

    async def breaks(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + event("one"))
        await asyncio.sleep(PATIENCE if is_silent else 0.3)
        writer.transport.abort()

    async with replicas(breaks) as [replica], router(replica, stream_idle_timeout=0.6) as url:
        reader, writer = await asking(url, b"GET / HTTP/1.0\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"one\n\n"), PATIENCE)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()


async def test_a_stream_may_take_long_while_it_moves() -> None:
    moves = streaming(*"abcd", pause=0.4)
    async with replicas(moves) as [replica], router(replica, stream_idle_timeout=1.3) as url:
        answer = await post(url, STREAMED)
        assert answer.body.count(b"data:") == 4


async def test_without_the_limit_silence_is_waited_for() -> None:
    late = streaming("a", "b", pause=0.8)
    async with replicas(late) as [replica], router(replica, stream_idle_timeout=0.0) as url:
        assert (await post(url, STREAMED)).body.count(b"data:") == 2


async def test_a_client_that_does_not_read_is_not_the_workers_silence() -> None:
    size = 20_000_000

    async def large(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"x" * size))
        await writer.drain()

    async with replicas(large) as [replica], router(replica, stream_idle_timeout=0.5) as url:
        reader, writer = await request(url)
        await asyncio.sleep(1.0)
        _, headers = await read_head(reader)
        assert ("content-length", str(size)) in headers
        assert len(await asyncio.wait_for(reader.readexactly(size), PATIENCE)) == size
        writer.close()


async def test_a_worker_that_sends_only_heads_is_found_hung() -> None:
    hangs, answers = streaming(ends=False), streaming("hello")
    async with (
        replicas(hangs, answers) as [bad, good],
        router(bad, good, hung_timeout=0.8, cb_timeout=60.0) as url,
    ):
        reported = await asyncio.wait_for(asyncio.gather(*(post(url, STREAMED) for _ in range(6))), PATIENCE)
        assert {answer.header("x-sglang-omni-worker") for answer in reported} == {good.url}
        assert {answer.body for answer in reported} == {b"data: hello\n\n"}
        await becomes(url, bad, "hung")


async def test_a_head_alone_is_no_beginning_of_a_stream() -> None:
    async with replicas(streaming(ends=False)) as [replica], router(replica, request_timeout=0.8) as url:
        answer = await asyncio.wait_for(post(url, STREAMED), PATIENCE)
        assert answer.status == 504


async def test_a_stream_that_breaks_before_its_first_byte_is_asked_for_again() -> None:
    async def breaks(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()

    async with replicas(breaks, streaming("hello")) as [bad, good], router(bad, good) as url:
        for _ in range(2):
            assert (await post(url, STREAMED)).body == b"data: hello\n\n"
        assert len(bad.seen) >= 1
        assert await metric(url, "retries_total") >= 1


@pytest.mark.parametrize("ending", [b"0\r\n\r\n", b""])
async def test_an_empty_stream_is_an_answer(ending: bytes) -> None:
    async def empty(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        if ending:
            writer.write(HEAD + ending)
        else:
            writer.write(response(b"", headers="content-type: text/event-stream\r\n"))

    async with replicas(empty) as [replica], router(replica) as url:
        answer = await asyncio.wait_for(post(url, STREAMED), PATIENCE)
        assert (answer.status, answer.body) == (200, b"")


async def upgraded(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(url)
    writer.write(b"GET /s HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert "101" in (await read_head(reader))[0]
    return reader, writer


async def test_an_upgraded_stream_that_is_silent_gives_its_place_back() -> None:
    ended = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 101 Go\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        while data := await reader.read(100):
            writer.write(data)
        ended.set()

    async with raw_worker(echo) as worker, router(worker, stream_idle_timeout=1.0) as url:
        reader, writer = await upgraded(url)
        for _ in range(3):
            await asyncio.sleep(0.5)
            writer.write(b"ping")
            assert await asyncio.wait_for(reader.readexactly(4), PATIENCE) == b"ping"
        assert await load_of(url) == 1
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        await asyncio.wait_for(ended.wait(), PATIENCE)
        await comes_to(0, load_of, url)
        writer.close()


async def test_clients_that_vanish_are_noticed() -> None:
    """The system asks a silent client's host whether it is still there."""
    async with replicas(None) as [replica], router(replica) as url:
        reader, writer = await asking(url, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await read_head(reader)
        ours = writer.get_extra_info("sockname")[1]
        theirs = urlsplit(url).port
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        [timer] = [
            row[5].split(":")[0]
            for row in rows
            if (int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16)) == (theirs, ours)
        ]
        assert timer == "02"  # Of keepalive.
        writer.close()


UPGRADE = (
    b"GET /v1/realtime?model=m%20x&a=1 HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Key: a2V5\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
AGREED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Mine: 1\r\n\r\n"


class Upgrades:
    """Accepts upgrades and hands each one's streams to the test."""

    def __init__(self, greeting: bytes) -> None:
        self.greeting = greeting
        self.lines: list[str] = []
        self.streams: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.ended = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, _ = await read_head(reader)
        self.lines.append(line)
        writer.write(self.greeting)
        await self.streams.put((reader, writer))
        await self.ended.wait()  # It is the test that closes the connection.

    async def next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.wait_for(self.streams.get(), PATIENCE)


@contextlib.asynccontextmanager
async def upgrading(greeting: bytes = AGREED, **options: float) -> AsyncIterator[tuple[Upgrades, str]]:
    """A worker that accepts upgrades, and the URL of a router in front of it."""
    upgrades = Upgrades(greeting)
    async with raw_worker(upgrades) as worker, router(worker, **options) as url:
        yield upgrades, url
        upgrades.ended.set()


async def test_bytes_sent_right_behind_the_handshake_are_not_lost() -> None:
    async with upgrading(AGREED + b"first from the worker") as (worker, url):
        reader, writer = await asking(url, UPGRADE + b"first from the client")
        line, headers = await read_head(reader)
        assert line == "HTTP/1.1 101 Switching Protocols"
        assert {("X-Mine", "1"), ("Upgrade", "websocket")} <= set(headers)
        there, back = await worker.next()
        assert await asyncio.wait_for(there.readexactly(21), PATIENCE) == b"first from the client"
        assert await asyncio.wait_for(reader.readexactly(21), PATIENCE) == b"first from the worker"
        assert worker.lines == ["GET /v1/realtime?model=m%20x&a=1 HTTP/1.1"]
        writer.close()
        back.close()


@pytest.mark.parametrize("first", ["client", "worker"])
async def test_either_side_may_end_first(first: str) -> None:
    async with upgrading() as (worker, url):
        reader, writer = await asking(url, UPGRADE)
        await read_head(reader)
        there, back = await worker.next()
        assert await load_of(url) == 1
        ends, hears, speaks = (writer, there, back) if first == "client" else (back, reader, writer)
        ends.write(b"last words")
        ends.write_eof()
        assert await asyncio.wait_for(hears.read(), PATIENCE) == b"last words"
        # The other direction is still open.
        other = reader if first == "client" else there
        speaks.write(b"and mine")
        speaks.close()
        assert await asyncio.wait_for(other.read(), PATIENCE) == b"and mine"
        ends.close()
        await comes_to(0, load_of, url)


@pytest.mark.parametrize("who", ["client", "worker"])
async def test_a_reset_ends_the_other_side(who: str) -> None:
    async with upgrading() as (worker, url):
        reader, writer = await asking(url, UPGRADE)
        await read_head(reader)
        there, back = await worker.next()
        resets, hears = (writer, there) if who == "client" else (back, reader)
        linger = struct.pack("ii", 1, 0)
        resets.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        resets.close()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(hears.read(), PATIENCE) == b""
        await comes_to(0, load_of, url)
        writer.close()
        back.close()


@pytest.mark.parametrize("first", ["client", "worker"])
async def test_a_side_that_does_not_notice_the_others_end_holds_nothing(first: str) -> None:
    async with upgrading(stall_timeout=0.3) as (worker, url):
        reader, writer = await asking(url, UPGRADE)
        await read_head(reader)
        _, back = await worker.next()
        (writer if first == "client" else back).write_eof()
        await comes_to(0, load_of, url)
        writer.close()
        back.close()


async def test_a_handshake_that_is_never_answered_ends() -> None:
    async with upgrading(b"", request_timeout=0.5) as (_, url):
        reader, writer = await asking(url, UPGRADE)
        line, _ = await asyncio.wait_for(read_head(reader), PATIENCE)
        assert line.startswith("HTTP/1.1 504 ")
        await comes_to(0, load_of, url)
        writer.close()


async def test_websocket() -> None:
    async with (
        websocket_echo() as worker,
        router(worker) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.ws_connect(f"{url}/v1/realtime?model=m", protocols=("realtime",)) as socket:
            assert socket.protocol == "realtime"
            await socket.send_str("hello")
            assert await socket.receive_str() == "hello"
            await socket.send_bytes(bytes(range(256)) * 1000)
            assert await socket.receive_bytes() == bytes(range(256)) * 1000
            assert await load_of(url) == 1
        # A route that does not upgrade answers as it is.
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{url}/nothing")
        assert refused.value.status == 404


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_a_request_with_a_body_is_not_upgraded(protocol: str) -> None:
    offer = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\n"
    async with replicas(None) as [replica], router(replica) as url:
        assert (await post(url, b'{"prompt": "p"}', headers=offer)).status == 200
    [seen] = replica.seen
    assert seen.body == b'{"prompt": "p"}'
    assert {"upgrade", "http2-settings", "connection"}.isdisjoint(name.lower() for name, _ in seen.headers)
