"""Clients that leave: their request ends at the worker too, and is no load any more."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest
from router_harness import (
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
    router,
    workers,
)
from waiting import PATIENCE

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"
UPGRADE = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


class Endless:
    """A handler that says when it was asked, begins to answer, and never ends."""

    def __init__(self, start: bytes = b"") -> None:
        self.start = start
        self.asked = asyncio.Event()

    async def __call__(self, _seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(self.start)
        self.asked.set()
        await asyncio.Event().wait()


# Old clients send a line break behind a body, and others the next request: nobody reads it meanwhile.
BEHIND = {"nothing": b"", "a line break": b"\r\n", "a request": b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"}


@pytest.mark.parametrize("start", [b"", CHUNKED], ids=["before the answer", "in the middle of it"])
@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND.keys())
async def test_a_client_that_leaves_cancels_its_request(start: bytes, behind: bytes) -> None:
    endless = Endless(start)
    async with replicas(endless) as [replica], router(replica) as url:
        body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
        reader, writer = await asking(url, body + behind)
        await endless.asked.wait()
        if start:
            await read_head(reader)
        assert await load_of(url) == 1
        writer.close()
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)
        await comes_to(0, load_of, url)


async def test_a_client_that_leaves_before_its_upgrade_is_agreed_to() -> None:
    endless = Endless()
    async with replicas(endless) as [replica], router(replica) as url:
        _, writer = await asking(url, UPGRADE)
        await endless.asked.wait()
        writer.close()
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)
        await comes_to(0, load_of, url)


@pytest.mark.parametrize("who", ["worker", "client"])
async def test_a_websocket_ends_as_the_side_that_reset_it_says(who: str) -> None:
    """The worker's death is not the client's leaving, and does not look like an end to the client."""
    agreed = asyncio.Event()

    def reset(writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + b"x" * 1000)
        assert await reader.readexactly(5) == b"hello"
        agreed.set()
        if who == "worker":
            reset(writer)
        else:
            await reader.read()

    async with raw_worker(serve) as worker, router(worker) as url:
        reader, writer = await asking(url, UPGRADE)
        assert (await read_head(reader))[0].split()[1] == "101"
        assert await reader.readexactly(1000) == b"x" * 1000
        writer.write(b"hello")
        await agreed.wait()
        if who == "worker":
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(), PATIENCE)
        else:
            reset(writer)
        how = {"worker": "worker_cut", "client": "client_left"}[who]
        await comes_to(1.0, ended, url, how)
        assert await metric(url, "sent_bytes_total") >= 1000


async def ended(url: str, how: str) -> float:
    """Requests that ended so."""
    page = (await get(url, "/metrics")).body.decode()
    line = f'sglang_omni_router_requests_ended_total{{how="{how}"}} '
    return float(page.partition(line)[2].partition("\n")[0])


async def test_a_client_that_leaves_in_the_middle_of_its_upload() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1 << 20)
        begun.set()
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        ended.set()

    async with raw_worker(serve) as worker, router(worker) as url:
        _, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 5_000_000)
        await begun.wait()
        assert await load_of(url) == 1
        writer.close()
        await asyncio.wait_for(ended.wait(), PATIENCE)
        await comes_to(0, load_of, url)
        assert (await workers(url))[worker]["failures"] == 0


async def test_a_client_that_leaves_before_its_body_has_come_reaches_no_worker() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        _, writer = await asking(url, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf")
        await writer.drain()
        writer.close()
        assert (await post(url)).status == 200
        assert len(replica.seen) == 1
        await comes_to(0, load_of, url)


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
            _, writer = await asking(url, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            await comes_to(1, load_of, url)
            writer.close()
            await comes_to(0, load_of, url)
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
        async with router(one, other, probe_timeout=0.3) as url:
            for worker in (one, other):
                await becomes(url, worker, "down")
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
        reader, writer = await asking(url, request[:length])
        if length == len(request):
            await read_head(reader)
        writer.transport.abort()

    async with replicas(answer) as [replica], router(replica) as url:
        await asyncio.gather(*(comes_and_goes(url, length) for length in range(len(request) + 1)))
        await asyncio.gather(*(comes_and_goes(url, len(request)) for _ in range(50)))
        await comes_to(0, load_of, url)
        assert (await post(url)).body == b"firstlast"
