"""Clients that leave: their request ends at the worker too, and is no load any more."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from router_harness import (
    PATIENCE,
    Seen,
    connect,
    post,
    read_head,
    replicas,
    router,
    until,
    workers,
)

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"
UPGRADE = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"


class Endless:
    """A handler that says when it was asked, begins to answer, and never ends."""

    def __init__(self, start: bytes = b"") -> None:
        self.start = start
        self.asked = asyncio.Event()

    async def __call__(self, _seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(self.start)
        self.asked.set()
        await asyncio.Event().wait()


async def load_becomes(url: str, worker: str, load: int) -> None:
    async def found() -> bool:
        return (await workers(url))[worker]["load"] == load

    await until(found, f"the load is {load}")


@pytest.mark.parametrize("start", [b"", CHUNKED], ids=["before the answer", "in the middle of it"])
async def test_a_client_that_leaves_cancels_its_request(start: bytes) -> None:
    endless = Endless(start)
    async with replicas(endless) as [replica], router(replica) as url:
        reader, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
        await endless.asked.wait()
        if start:
            await read_head(reader)
        assert (await workers(url))[replica.url]["load"] == 1
        writer.close()
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)
        await load_becomes(url, replica.url, 0)


async def test_an_upgraded_connection_ends_with_its_client() -> None:
    endless = Endless(SWITCHED)
    async with replicas(endless) as [replica], router(replica) as url:
        reader, writer = await connect(url)
        writer.write(UPGRADE)
        assert (await read_head(reader))[0].startswith("HTTP/1.1 101")
        await load_becomes(url, replica.url, 1)
        writer.close()
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)
        await load_becomes(url, replica.url, 0)


async def test_a_client_that_leaves_before_its_upgrade_is_agreed_to() -> None:
    endless = Endless()
    async with replicas(endless) as [replica], router(replica) as url:
        _, writer = await connect(url)
        writer.write(UPGRADE)
        await endless.asked.wait()
        writer.close()
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)
        await load_becomes(url, replica.url, 0)


@contextlib.asynccontextmanager
async def raw_worker(reads: int) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """A worker that reads some bytes of its first connection; yields its URL, and when that was and ended."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readexactly(4)) == b"GET ":  # A health check.
            writer.close()
            return
        await reader.readexactly(reads - 4)
        begun.set()
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        ended.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", begun, ended


async def test_a_client_that_leaves_in_the_middle_of_its_upload() -> None:
    async with raw_worker(reads=1 << 20) as (worker, begun, ended), router(worker) as url:
        _, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 5_000_000)
        await begun.wait()
        assert (await workers(url))[worker]["load"] == 1
        writer.close()
        await asyncio.wait_for(ended.wait(), PATIENCE)
        await load_becomes(url, worker, 0)
        assert (await workers(url))[worker]["failures"] == 0


async def test_a_client_that_leaves_before_its_body_has_come_reaches_no_worker() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        _, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf")
        await writer.drain()
        writer.close()
        assert (await post(url)).status == 200
        assert len(replica.seen) == 1
        await load_becomes(url, replica.url, 0)


@contextlib.contextmanager
def unreachable() -> Iterator[str]:
    """A URL that takes no connection and refuses none, as that of a host that has vanished."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as fillers:
        # What fits into the queue of connections that nobody takes.
        for _ in range(2):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_client_that_leaves_while_its_worker_is_connected_to() -> None:
    with unreachable() as worker:
        async with router(worker, probe_interval=3600.0) as url:
            _, writer = await connect(url)
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            await load_becomes(url, worker, 1)
            writer.close()
            await load_becomes(url, worker, 0)
            # It was the client that ended it, not the time for a connection.
            assert (await workers(url))[worker]["failures"] == 0


async def test_a_worker_that_cannot_be_connected_to_costs_no_request() -> None:
    with unreachable() as vanished:
        async with replicas(None) as [well], router(vanished, well) as url:
            answers = await asyncio.wait_for(asyncio.gather(*(post(url) for _ in range(6))), PATIENCE)
            assert {answer.status for answer in answers} == {200}
            assert len(well.seen) == 6


async def test_where_no_worker_can_be_connected_to_the_answer_is_a_503() -> None:
    with unreachable() as one, unreachable() as other:
        async with router(one, other) as url:
            for _ in range(2):
                answer = await asyncio.wait_for(post(url), PATIENCE)
                assert (answer.status, answer.header("retry-after")) == (503, "1")
            assert b"after 0.5 s" in answer.body
            # Known to be down, one of them is asked and not each.
            failures = [worker["failures"] for worker in (await workers(url)).values()]
            await post(url)
            assert sum(worker["failures"] for worker in (await workers(url)).values()) == sum(failures) + 1


async def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await asyncio.sleep(0.01)
        writer.write(b"4\r\nlast\r\n0\r\n\r\n")

    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"

    async def comes_and_goes(url: str, length: int) -> None:
        reader, writer = await connect(url)
        writer.write(request[:length])
        if length == len(request):
            await read_head(reader)
        writer.transport.abort()

    async with replicas(answer) as [replica], router(replica) as url:
        await asyncio.gather(*(comes_and_goes(url, length) for length in range(len(request) + 1)))
        await asyncio.gather(*(comes_and_goes(url, len(request)) for _ in range(50)))
        await load_becomes(url, replica.url, 0)
        assert (await post(url)).body == b"firstlast"
