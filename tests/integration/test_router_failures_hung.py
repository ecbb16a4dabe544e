"""Workers that take requests and answer nothing: found out, behind the others, and rid of what waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from router_harness import (
    Answer,
    Replica,
    Seen,
    asking,
    assert_error,
    becomes,
    change,
    comes_to,
    connect,
    launched,
    listed,
    metric,
    post,
    read_head,
    replicas,
    response,
    router,
    send_raw,
    until,
    workers,
)
from router_process import replica_processes
from waiting import PATIENCE

# Much sooner than by default: tests wait for it.
QUICK: dict[str, Any] = {"hung_timeout": 1.0}
# Only where a health check is to hang: on a busy machine a replica that is well may be this late.
PROBED: dict[str, Any] = QUICK | {"probe_timeout": 0.3}
FOR_GOOD: dict[str, Any] = {"cb_timeout": 60.0}
STREAMED = b'{"stream": true, "prompt": "p"}'
STREAM = b"Content-Length: %d\r\n\r\n%s" % (len(STREAMED), STREAMED)


class Hangs:
    """A handler that answers nothing while `hangs`, and then answers all."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

    async def __call__(self, _seen: Seen, writer: asyncio.StreamWriter) -> None:
        await self.answers.wait()
        writer.write(response())


@contextlib.asynccontextmanager
async def traffic(url: str, body: bytes = b"{}") -> AsyncIterator[list[int]]:
    """Requests one after the other; yields the statuses of those that are done."""
    statuses: list[int] = []

    async def client() -> None:
        while True:
            statuses.append((await post(url, body)).status)

    # A second one goes on where the first waits for a worker that hangs.
    running = [asyncio.ensure_future(client()) for _ in range(4)]
    try:
        yield statuses
    finally:
        for task in running:
            task.cancel()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome


async def test_a_stopped_process_costs_no_request_and_is_back_when_it_goes_on() -> None:
    async with replica_processes(2) as [one, other], router(one, other, **PROBED) as url:
        await becomes(url, one, "up")
        one.signal(signal.SIGSTOP)
        answers = await asyncio.wait_for(asyncio.gather(*(post(url) for _ in range(10))), PATIENCE)
        assert {answer.body for answer in answers} == {str(other.pid).encode()}
        await becomes(url, one, "down")
        assert (await workers(url))[one.url]["load"] == 0
        one.signal(signal.SIGCONT)
        await becomes(url, one, "up")

        async def serving() -> set[bytes]:
            return {(await post(url)).body for _ in range(4)}

        await comes_to({str(process.pid).encode() for process in (one, other)}, serving)


async def test_a_stream_waits_for_a_stopped_process() -> None:
    async with replica_processes(2) as [one, other], router(one, other, **PROBED) as url:
        streams = [await connect(url) for _ in range(2)]
        for reader, writer in streams:
            writer.write(b'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n{"pause": 1.0}')
            await read_head(reader)
        one.signal(signal.SIGSTOP)
        await becomes(url, one, "down")
        assert {(await post(url)).body for _ in range(4)} == {str(other.pid).encode()}
        await asyncio.sleep(2 * QUICK["hung_timeout"])  # What waits for its first byte would be gone by now.
        one.signal(signal.SIGCONT)
        for reader, writer in streams:
            rest = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), PATIENCE)
            assert rest == b"5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\n"
            writer.close()
        assert await metric(url, "retries_total") == 0


async def test_a_killed_process_costs_no_request() -> None:
    async with (
        replica_processes(2) as [one, other],
        router(one, other, **QUICK) as url,
        traffic(url) as statuses,
    ):
        await until(lambda: len(statuses) >= 20, "requests are served")
        one.signal(signal.SIGKILL)
        await becomes(url, one, "down")
        so_far = len(statuses)
        await until(lambda: len(statuses) >= so_far + 20, "requests are served")
        async with replica_processes(1, one.port) as [revived]:
            await becomes(url, revived, "up")
            assert str(revived.pid).encode() in {(await post(url)).body for _ in range(8)}
            assert set(statuses) == {200}


@pytest.mark.parametrize("body", [b"{}", STREAMED], ids=["whole", "streamed"])
async def test_requests_that_hang_while_health_is_fine(body: bytes) -> None:
    async def streams(seen: Seen, writer: asyncio.StreamWriter) -> None:
        kind = "text/event-stream" if b"stream" in seen.body else "application/json"
        writer.write(response(headers=f"content-type: {kind}\r\n"))

    async with (
        replicas(Hangs(), streams) as [hung, well],
        router(hung, well, **QUICK | FOR_GOOD) as url,
        traffic(url, body) as statuses,
    ):
        await becomes(url, hung, "hung")
        assert hung.probes > 0
        # All that waited for it is answered by the other, and nothing more goes there.
        await until(lambda: idle(url, hung), "nothing waits for it")
        seen, so_far = len(hung.seen), len(statuses)
        await until(lambda: len(statuses) >= so_far + 20, "requests are served")
        assert len(hung.seen) == seen
        assert set(statuses) == {200}


async def idle(url: str, replica: Replica) -> bool:
    return (await workers(url))[replica.url]["load"] == 0


async def test_a_hung_worker_that_answers_again_is_back_within_seconds() -> None:
    hangs = Hangs()
    async with (
        replicas(hangs, None) as [hung, well],
        router(hung, well, **QUICK) as url,
        traffic(url) as statuses,
    ):
        await becomes(url, hung, "hung")
        hangs.answers.set()
        await becomes(url, hung, "up")
        seen = len(hung.seen)
        await until(lambda: len(hung.seen) >= seen + 5, "it serves its share")
        assert set(statuses) == {200}


async def test_a_request_that_takes_long_everywhere_is_waited_for() -> None:
    async def slow(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.5 * QUICK["hung_timeout"])
        writer.write(response(headers="content-type: text/event-stream\r\n"))

    async with replicas(slow, slow) as both, router(*both, **QUICK) as url:
        # The first answers tell how long such requests take, and that there is somebody to answer them.
        for _ in range(2):
            answers = await asyncio.gather(*(post(url, STREAMED) for _ in range(6)))
            assert {answer.status for answer in answers} == {200}
        assert {worker["state"] for worker in (await workers(url)).values()} == {"up"}
        assert sum(len(replica.seen) for replica in both) == 12


class Stops:
    """A handler that streams a piece each 50 ms, and answers others at once, until it ``stops``."""

    def __init__(self) -> None:
        self.stops = False

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        if b"stream" in seen.body:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            while not self.stops:
                writer.write(b"data: {}\n\n")
                await asyncio.sleep(0.05)
        if self.stops:
            await asyncio.sleep(PATIENCE)
        writer.write(response())


async def test_streams_that_fall_silent_tell_sooner_than_whole_answers_that_are_late() -> None:
    streams, answers_whole = Stops(), Stops()
    async with (
        replicas(streams, answers_whole, None) as [silent, late, well],
        router(silent, late, well, hung_timeout=2.0, **FOR_GOOD) as url,
    ):
        # The first of them gets the first request.
        reader, writer = await asking(url, b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n" + STREAM)
        await reader.readuntil(b"data: {}")
        async with traffic(url) as statuses:
            await until(lambda: len(statuses) >= 20, "requests are served")
            streams.stops = answers_whole.stops = True
            await becomes(url, silent, "hung")
            assert {worker["url"]: worker["state"] for worker in await listed(url)} == {
                silent.url: "hung",
                late.url: "up",
                well.url: "up",
            }
            await becomes(url, late, "hung")
            assert set(statuses) == {200}
        writer.close()


async def test_what_waits_for_a_worker_that_hangs_goes_elsewhere_while_the_router_drains() -> None:
    options = ["--policy", "round_robin", "--hung-timeout", "2", "--drain-timeout", "60", "--worker-urls"]
    async with (
        replicas(Hangs(), None) as [hung, well],
        launched(*options, hung.url, well.url) as (process, url),
    ):
        waiting = [asyncio.ensure_future(post(url)) for _ in range(4)]

        await until(lambda: len(hung.seen) == len(well.seen) == 2, "each has its share")
        process.send_signal(signal.SIGTERM)
        answers = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
        assert [answer.status for answer in answers] == [200] * 4
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


async def test_a_long_request_is_not_measured_by_short_ones() -> None:
    asked, finish = asyncio.Event(), asyncio.Event()

    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if len(seen.body) > 50_000:
            asked.set()
            await finish.wait()
        writer.write(response())

    async with replicas(handler, handler) as both, router(*both, **QUICK) as url:
        waiting = asyncio.ensure_future(post(url, json.dumps({"prompt": "long " * 20_000}).encode()))
        await asked.wait()
        busy = next(replica for replica in both if replica.seen)
        for answer in [await post(url) for _ in range(4)]:
            assert answer.status == 200
        heard = asyncio.get_running_loop().time()
        other = next(replica for replica in both if replica is not busy)
        # The worker with the long request is asked for nothing else, and is silent for long.
        await change(url, "POST", "/workers/drain", {"url": busy.url})
        while asyncio.get_running_loop().time() < heard + 2 * QUICK["hung_timeout"]:
            assert (await post(url)).header("x-sglang-omni-worker") == other.url
        assert (await workers(url))[busy.url]["state"] == "up"
        finish.set()
        assert (await waiting).body == b"ok"
        assert sum(len(seen.body) > 50_000 for replica in both for seen in replica.seen) == 1


async def test_the_last_worker_is_waited_for() -> None:
    hangs = Hangs()
    async with replicas(hangs) as [only], router(only, **PROBED) as url:
        only.health_hangs = True
        waiting = [asyncio.ensure_future(post(url)) for _ in range(4)]
        await becomes(url, only, "down")
        await asyncio.sleep(2 * QUICK["hung_timeout"])
        assert not any(task.done() for task in waiting)
        hangs.answers.set()
        assert [(await task).status for task in waiting] == [200] * 4
        assert len(only.seen) == 4


async def test_a_busy_worker_whose_health_check_hangs_is_not_shut_out() -> None:
    async with replicas(None, None) as [busy, other], router(busy, other, probe_timeout=0.5) as url:
        await becomes(url, busy, "up")
        async with traffic(url) as statuses:
            await until(lambda: len(statuses) >= 20, "requests are served")
            busy.health_hangs = True
            probes = busy.probes
            await until(lambda: busy.probes >= probes + 4, "it is probed, in vain")
            assert (await workers(url))[busy.url]["state"] == "up"
        # Without any sign of life from it, that counts.
        await becomes(url, busy, "down")
        assert set(statuses) == {200}


@pytest.mark.parametrize("size", [2, 900_000])
async def test_a_worker_that_accepts_connections_but_never_reads(size: int) -> None:
    body = b"{}".ljust(size)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as deaf:
        url_of_deaf = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        async with replicas(None) as [well], router(url_of_deaf, well, **PROBED) as url:
            answers = await asyncio.wait_for(asyncio.gather(*(post(url, body) for _ in range(6))), PATIENCE)
            assert [answer.body for answer in answers] == [b"ok"] * 6
            assert {len(seen.body) for seen in well.seen} == {size}

            await becomes(url, url_of_deaf, "down")


async def test_a_worker_that_accepts_connections_and_closes_them() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    ill = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, replicas(None) as [well], router(ill, well, **QUICK) as url:
        for _ in range(3):
            assert {answer.status for answer in await asyncio.gather(*(post(url) for _ in range(6)))} == {200}
        await becomes(url, ill, "down")
        assert len(well.seen) == 18


async def test_an_answer_that_does_not_begin_in_time_is_a_504() -> None:
    async with replicas(Hangs()) as [replica], router(replica, request_timeout=0.5) as url:
        answer = await asyncio.wait_for(post(url), PATIENCE)
        assert_error(
            answer, 504, f"worker {replica.url} has not begun to answer in 0.5 s", code="worker_timeout"
        )
        # The worker is told, by the end of its connection.
        await asyncio.wait_for(replica.closed.wait(), PATIENCE)
        assert (await workers(url))[replica.url]["load"] == 0


async def test_an_upgrade_that_hangs_goes_elsewhere() -> None:
    head = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

    async def accepts(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")

    async def upgraded() -> Answer:
        return await send_raw(url, head)

    async with replicas(Hangs(), accepts) as [hung, well], router(hung, well, **PROBED) as url:
        hung.health_hangs = True
        answers = await asyncio.wait_for(asyncio.gather(*(upgraded() for _ in range(4))), PATIENCE)
        assert {answer.status for answer in answers} == {101}
        assert {answer.header("x-sglang-omni-worker") for answer in answers} == {well.url}


async def test_connections_to_workers_are_kept_under_watch() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        await post(url)
        # A host that vanishes sends no reset: only a timer of the system's own can tell.
        assert "02" in tcp_timers(replica.port)


def tcp_timers(port: int) -> set[str]:
    """The kinds of timers on this machine's connections to a port; 02 is keepalive."""
    with open(f"/proc/{os.getpid()}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {row[5][:2] for row in rows if int(row[2].split(":")[1], 16) == port and row[3] == "01"}
