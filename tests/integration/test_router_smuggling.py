"""Requests and answers that two readers could take to end at different places: the router takes them one
way only, or not at all, and what it passes on leaves the next reader no choice.

Requests that it refuses whatever a worker would say are in ``tests/attacks``.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest
from router_harness import asking, connect, raw_worker, replicas, response, router, send_raw
from waiting import PATIENCE

NEXT = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@contextlib.asynccontextmanager
async def recorder() -> AsyncIterator[tuple[bytearray, str]]:
    """All that a worker gets, which answers what may be the end of a request; and the URL of its router."""
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1 << 16):
            received.extend(piece)
            if received.endswith((b"\r\n\r\n", b"hello")):
                writer.write(response())

    async with raw_worker(serve) as worker, router(worker) as url:
        yield received, url


async def send(url: str, request: bytes) -> bytes:
    """All that comes back up to the end of an answer, or of the connection."""
    reader, writer = await asking(url, request)
    answer = bytearray()
    with contextlib.suppress(ConnectionError):
        while not answer.endswith((b"ok", b"}")):
            piece = await asyncio.wait_for(reader.read(1 << 16), PATIENCE)
            if not piece:
                break
            answer += piece
    writer.close()
    return bytes(answer)


HEAD = b"POST /first HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "codings", [b"gzip, chunked", b"chunked, chunked", b"gzip\r\nTransfer-Encoding: chunked"]
)
async def test_codings_that_would_be_lost_on_the_way_are_refused(codings: bytes) -> None:
    async with recorder() as (received, url):
        head = HEAD + b"Transfer-Encoding: " + codings
        answer = await send(url, head + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert received == b""


BAD_CHUNKS = {
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "a size that is no number": b"5g\r\nhello\r\n0\r\n\r\n",
    "a signed size": b"+5\r\nhello\r\n0\r\n\r\n",
    "a size in 0x form": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a size beyond 64 bits": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "a size that wraps around": b"fffffffffffffffff5\r\nhello\r\n0\r\n\r\n",
    "a size ended by a bare LF": b"5\nhello\r\n0\r\n\r\n",
    "data longer than its size": b"3\r\nhello\r\n0\r\n\r\n",
    "data shorter than its size": b"7\r\nhello\r\n0\r\n\r\n",
    "an extension with a bare LF": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "an extension without end": b"5;" + b"x" * 100_000 + b"\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
async def test_bad_chunks_end_an_upload(name: str) -> None:
    """One that is passed on as it comes; what is read whole first is in ``tests/attacks``."""
    head = HEAD + b"Content-Type: audio/wav\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with recorder() as (received, url):
        answer = await send(url, head + BAD_CHUNKS[name] + NEXT)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) in ([b"400"], [])
    assert b"smuggled" not in received
    # A body that was begun is not ended as if it were whole.
    assert not received.endswith(b"0\r\n\r\n")


async def test_chunk_extensions_stop_here() -> None:
    chunks = b'5;name="va;lue";x\r\nhello\r\n0;last\r\n\r\n'
    async with replicas(None) as [replica], router(replica) as url:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"
        assert (await send_raw(url, head + chunks)).status == 200
    assert replica.seen[0].body == b"hello"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: content-length\r\n",
    ],
)
async def test_a_length_beside_chunks_never_reaches_the_worker(framing: bytes) -> None:
    async with recorder() as (received, url):
        answer = await send(url, HEAD + framing + b"\r\n5\r\nhello\r\n0\r\n\r\n" + NEXT)
    statuses = re.findall(rb"HTTP/1.1 (\d+)", answer)
    assert statuses
    assert statuses[0] in (b"200", b"400")
    assert b"smuggled" not in received
    assert b"content-length: 4" not in received.lower()


async def test_the_same_length_twice_is_one() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"
        answer = await send_raw(url, head + b"hello")
    if answer.status == 200:
        [seen] = replica.seen
        assert seen.body == b"hello"
        assert [value for name, value in seen.headers if name.lower() == "content-length"] == ["5"]
    else:
        assert (answer.status, replica.seen) == (400, [])


ANSWERS = {
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nokHTTP",
    "a length that is no number": b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok",
    "a folded header": b"HTTP/1.1 200 OK\r\nX: 1\r\n Content-Length: 2\r\n\r\nok",
    "not HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "a coding that nobody asked for": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    b"2\r\nok\r\n0\r\n\r\n",
    "a protocol that nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n"
    b"Upgrade: other\r\n\r\nok",
    "a nul in a value": b"HTTP/1.1 200 OK\r\nX: \x00\r\nContent-Length: 2\r\n\r\nok",
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_answers_that_are_not_http_become_502(name: str) -> None:
    async def handler(_seen: object, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWERS[name])
        writer.close()

    async with replicas(handler) as [replica], router(replica, disable_retries=True) as url:
        answer = await send_raw(url, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.status in (502, 503), answer


async def test_what_a_worker_sends_behind_its_answer_is_nobodys() -> None:
    """A worker that sends more than it announced does not answer the next request with it."""

    async def handler(_seen: object, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"mine") + response(b"not asked for"))

    async with replicas(handler) as [replica], router(replica) as url:
        reader, writer = await connect(url)
        for _ in range(5):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            assert head.startswith(b"HTTP/1.1 200")
            assert await asyncio.wait_for(reader.readexactly(4), PATIENCE) == b"mine"
        writer.close()
