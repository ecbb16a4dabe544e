"""Requests that change protocols: once the worker agrees, bytes go both ways as they are."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import aiohttp
import pytest
from router_harness import (
    PATIENCE,
    asking,
    comes_to,
    load_of,
    post,
    raw_worker,
    read_head,
    replicas,
    router,
    websocket_echo,
)

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


async def test_a_client_that_leaves_a_silent_handshake_frees_the_worker() -> None:
    async with upgrading(b"") as (worker, url):
        _, writer = await asking(url, UPGRADE)
        there, back = await worker.next()
        assert await load_of(url) == 1
        writer.close()
        assert await asyncio.wait_for(there.read(), PATIENCE) == b""
        await comes_to(0, load_of, url)
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
