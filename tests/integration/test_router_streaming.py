"""Bodies that stream: nothing waits for their end, and nobody's slowness fills the router's memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from router_harness import (
    Seen,
    asking,
    connect,
    launched,
    post,
    raw_worker,
    read_body,
    read_head,
    replicas,
    response,
    router,
    until,
)
from waiting import PATIENCE

MB = 1 << 20
BIG = 64 * MB

# Far below a big body, far above what a few connections need.
ROOM = 16 * MB


@dataclass(frozen=True)
class RouterProcess:
    """A router with a memory of its own to look at."""

    url: str
    pid: int

    def memory(self, field: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(rf"{field}:\s+(\d+) kB", status)
        assert match is not None
        return int(match[1]) * 1024


@contextlib.asynccontextmanager
async def router_process(worker_url: str) -> AsyncIterator[RouterProcess]:
    # What a worker of these tests does is never a reason to try another, and probes would only disturb it.
    options = ["--worker-urls", worker_url, "--probe-interval", "3600", "--disable-retries"]
    async with launched(*options) as (process, url):
        yield RouterProcess(url, process.pid)


async def settled(count: list[int]) -> None:
    """Waits until a number has stopped growing."""
    seen: list[int] = []

    async def same() -> bool:
        seen.append(count[0])
        return len(seen) > 15 and seen[-1] > 0 and len(set(seen[-15:])) == 1

    await until(same, "nothing moves any more")


async def test_the_rest_of_a_large_body_is_not_waited_for() -> None:
    """The worker has the start of an upload while the client still holds its end back."""
    started = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, headers = await read_head(reader)
        start = await reader.readexactly(1_500_000)
        started.set()
        rest = await reader.readexactly(int(dict(headers)["Content-Length"]) - len(start))
        writer.write(response(b"%d" % (len(start) + len(rest))))

    async with raw_worker(serve) as worker, router(worker, policy="cache_aware") as url:
        reader, writer = await connect(url)
        head = (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n\r\n"
        )
        writer.write(head + b'{"prompt":"' + b"x" * 1_700_000)
        await asyncio.wait_for(started.wait(), PATIENCE)
        writer.write(b"x" * (2_000_000 - 1_700_000 - 11))
        _, headers = await read_head(reader)
        assert await read_body(reader, headers) == b"2000000"
        writer.close()


@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_big_upload_takes_little_memory(kind: str, framing: str) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, headers = await read_head(reader)
        digest = hashlib.sha256()
        left = int(dict(headers)["Content-Length"]) if framing == "length" else -1
        while left:
            if framing == "chunks":
                left = int(await reader.readline(), 16)
                piece = (await reader.readexactly(left + 2))[:-2]
            else:
                piece = await reader.read(MB)
                left -= len(piece)
            digest.update(piece)
        writer.write(response(digest.hexdigest().encode()))

    piece = bytes(range(256)) * 256
    async with raw_worker(count) as worker, router_process(worker) as process:
        before = process.memory()
        reader, writer = await connect(process.url)
        length = f"Content-Length: {BIG}" if framing == "length" else "Transfer-Encoding: chunked"
        writer.write(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\n{length}\r\n\r\n".encode())
        for _ in range(BIG // len(piece)):
            writer.write(piece if framing == "length" else b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"" if framing == "length" else b"0\r\n\r\n")
        _, headers = await asyncio.wait_for(read_head(reader), PATIENCE)
        expected = hashlib.sha256(piece * (BIG // len(piece))).hexdigest()
        assert await read_body(reader, headers) == expected.encode()
        assert process.memory("VmHWM") - before < ROOM
        writer.close()


async def test_a_big_answer_takes_little_memory() -> None:
    piece = bytes(range(256)) * 256

    async def send(_reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {BIG}\r\n\r\n".encode())
        for _ in range(BIG // len(piece)):
            writer.write(piece)
            await writer.drain()

    async with raw_worker(send) as worker, router_process(worker) as process:
        before = process.memory()
        reader, writer = await asking(process.url, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await read_head(reader)
        digest, left = hashlib.sha256(), BIG
        while left:
            data = await asyncio.wait_for(reader.read(left), PATIENCE)
            assert data
            digest.update(data)
            left -= len(data)
        assert digest.digest() == hashlib.sha256(piece * (BIG // len(piece))).digest()
        assert process.memory("VmHWM") - before < ROOM
        writer.close()


async def test_a_slow_reader_slows_the_worker_and_fills_nothing() -> None:
    sent = [0]

    async def send(_reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {BIG}\r\n\r\n".encode())
        while sent[0] < BIG:
            writer.write(bytes(65536))
            await writer.drain()
            sent[0] += 65536

    async with raw_worker(send) as worker, router_process(worker) as process:
        before = process.memory()
        reader, writer = await connect(process.url)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await settled(sent)
        # What sockets hold is the system's: up to 32 MiB each where it allows that.
        assert sent[0] < BIG
        assert process.memory("VmHWM") - before < ROOM
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await read_head(reader)
        assert len(await asyncio.wait_for(reader.readexactly(BIG), PATIENCE)) == BIG
        writer.close()


async def test_a_slow_worker_slows_the_client_and_fills_nothing() -> None:
    go_on = asyncio.Event()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, headers = await read_head(reader)
        await go_on.wait()
        left = int(dict(headers)["Content-Length"])
        while left:
            left -= len(await reader.read(MB))
        writer.write(response(b"all of it"))

    async with raw_worker(receive) as worker, router_process(worker) as process:
        before, sent = process.memory(), [0]
        reader, writer = await connect(process.url)
        writer.write(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BIG}\r\n\r\n".encode())

        async def upload() -> None:
            while sent[0] < BIG:
                writer.write(bytes(65536))
                await writer.drain()
                sent[0] += 65536

        uploading = asyncio.ensure_future(upload())
        await settled(sent)
        # What sockets hold is the system's: up to 32 MiB each where it allows that.
        assert sent[0] < BIG
        assert process.memory("VmHWM") - before < ROOM
        go_on.set()
        await asyncio.wait_for(uploading, PATIENCE)
        _, headers = await asyncio.wait_for(read_head(reader), PATIENCE)
        assert await read_body(reader, headers) == b"all of it"
        writer.close()


async def test_an_event_reaches_the_client_before_the_next_is_made() -> None:
    received = asyncio.Event()
    events = [f"data: {number}\n\n".encode() for number in range(5)]

    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await received.wait()
            received.clear()
        writer.write(b"0\r\n\r\n")

    async with (
        replicas(handler) as [replica],
        router(replica) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json={"stream": True}) as answer,
    ):
        assert answer.headers["content-type"] == "text/event-stream"
        for event in events:
            assert await asyncio.wait_for(answer.content.readuntil(b"\n\n"), PATIENCE) == event
            received.set()
        assert await answer.content.read() == b""


async def test_many_chunks_at_once_arrive_in_order_and_whole() -> None:
    events = [f"data: {number} {'y' * (number % 700)}\n\n".encode() for number in range(2000)]

    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n")

    async with replicas(handler) as [replica], router(replica) as url:
        for _ in range(3):
            assert (await post(url)).body == b"".join(events)


MANY = 8 << 20


async def test_a_client_that_is_still_sending_gets_the_answer_that_came_early() -> None:
    answered = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(response(b"no", "413 Too Large", "connection: close\r\n"))
        # A worker that closed now would take back what it has just said.
        await asyncio.wait_for(answered.wait(), PATIENCE)

    async with raw_worker(refuse) as worker, router(worker) as url:
        for _ in range(5):
            reader, writer = await connect(url)
            head = f"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {MANY}\r\n\r\n"
            writer.write(head.encode())
            # All of it, as clients do that look at the answer only then.
            for _ in range(MANY >> 16):
                writer.write(bytes(1 << 16))
                await asyncio.wait_for(writer.drain(), PATIENCE)
            line, headers = await asyncio.wait_for(read_head(reader), PATIENCE)
            assert line == "HTTP/1.1 413 Too Large"
            assert await read_body(reader, headers) == b"no"
            writer.close()
        answered.set()


async def test_an_upload_that_can_be_sent_once_gets_a_connection_of_its_own() -> None:
    async def once(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response())
        # The next request on this connection finds it closed.
        asyncio.get_running_loop().call_later(0.3, writer.close)

    async with replicas(once) as [replica], router(replica) as url:
        assert (await post(url)).status == 200
        reader, writer = await connect(url)
        head = f"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {MANY}\r\n\r\n".encode()
        writer.write(head + bytes(MANY // 2))
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)
        writer.write(bytes(MANY // 2))
        line, _ = await asyncio.wait_for(read_head(reader), PATIENCE)
        writer.close()
    assert line == "HTTP/1.1 200 OK"
    assert len(replica.seen[1].body) == MANY
