"""Uploads that a worker answers before it has read them, and uploads over connections that it is closing."""

from __future__ import annotations

import asyncio

from router_harness import (
    PATIENCE,
    Seen,
    connect,
    post,
    raw_worker,
    read_body,
    read_head,
    replicas,
    response,
    router,
)

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
