"""Faults at each point of the router: what its clients get, and that nothing of a request is kept."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from router_harness import (
    COMMAND,
    Answer,
    Replica,
    Seen,
    becomes,
    comes_to,
    connect,
    ending,
    load_of,
    post,
    replicas,
    response,
    router,
    until,
)
from waiting import PATIENCE

from sglang_omni._core import Switchboard

LONG_MS = 600_000


async def three_pieces(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for piece in (b"one", b"two", b"three"):
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await asyncio.sleep(0.02)
    writer.write(b"0\r\n\r\n")


@contextlib.asynccontextmanager
async def one_worker(handler: object = None) -> AsyncIterator[tuple[Replica, str]]:
    """A worker that is checked once, and a router of one thread."""
    async with replicas(handler) as [worker], router(worker, probe_interval=3600.0) as url:  # type: ignore[arg-type]
        await becomes(url, worker, "up")
        yield worker, url


async def read_all(url: str) -> bytes:
    """All that comes of an answer until the connection ends or resets."""
    reader, writer = await connect(url)
    writer.write(b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await asyncio.wait_for(reader.read(1 << 16), PATIENCE):
            received += part
    writer.close()
    return received


@contextlib.asynccontextmanager
async def busy_worker(board: Switchboard) -> AsyncIterator[str]:
    """A router whose next request needs a new connection: all that there are carry a request."""
    go_on = asyncio.Event()

    async def hold(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if " /hold " in seen.line:
            await go_on.wait()
        writer.write(response())

    def opened() -> int:
        return board.points()["router.connect"].hits if "router.connect" in board.points() else 0

    async with one_worker(hold) as (worker, url):
        holding: list[asyncio.Task[Answer]] = []
        is_new = False
        while not is_new:
            before = opened()
            holding.append(asyncio.create_task(post(url, path="/hold")))
            await until(lambda: len(worker.seen) == len(holding), "it is asked")
            is_new = opened() > before
        yield url
        go_on.set()
        assert {answer.status for answer in await asyncio.gather(*holding)} == {200}


async def test_a_request_reaches_each_point_once(fault_board: Switchboard) -> None:
    async with busy_worker(fault_board) as url:
        before = fault_board.points()
        assert (await post(url)).status == 200
        await until(lambda: "router.tail" in fault_board.points(), "the request is over")
        after = fault_board.points()
    assert before["router.health"].hits == 1
    for name in ("accept", "connect", "send", "head", "client", "tail"):
        point = f"router.{name}"
        assert after[point].hits - (before[point].hits if point in before else 0) == 1, point
    assert after["router.body"].hits > 0


@pytest.mark.parametrize("point", ["router.send", "router.head"])
async def test_a_worker_that_fails_there_costs_no_request(fault_board: Switchboard, point: str) -> None:
    async with replicas(None, None) as both, router(*both, probe_interval=3600.0) as url:
        for worker in both:
            await becomes(url, worker, "up")
        fault_board.arm(point, "error", argument=errno.ECONNRESET, times=2)
        assert (await post(url)).status == 200
        assert fault_board.points()[point].fired == 2


@pytest.mark.parametrize(("point", "status"), [("router.send", 503), ("router.head", 502)])
async def test_a_lone_worker_that_fails_there_is_reported(
    fault_board: Switchboard, point: str, status: int
) -> None:
    async with one_worker() as (_, url):
        fault_board.arm(point, "error", argument=errno.ECONNRESET, times=100)
        assert (await post(url)).status == status
        fault_board.disarm()
        await comes_to(0, load_of, url)
        assert (await post(url)).status == 200


async def test_a_lone_worker_that_refuses_a_connection_is_reported(fault_board: Switchboard) -> None:
    async with busy_worker(fault_board) as url:
        fault_board.arm("router.connect", "error", argument=errno.ECONNREFUSED, times=100)
        assert (await post(url)).status == 503
        fault_board.disarm()
        assert (await post(url)).status == 200


async def test_a_connection_is_closed_as_it_is_accepted(fault_board: Switchboard) -> None:
    async with one_worker() as (worker, url):
        fault_board.arm("router.accept", "error", argument=errno.ECONNABORTED)
        assert await read_all(url) == b""
        assert worker.seen == []
        assert (await post(url)).status == 200


async def test_an_answer_is_cut_behind_the_piece_in_question(fault_board: Switchboard) -> None:
    async with one_worker(three_pieces) as (_, url):
        # The first piece was waited for with the head.
        fault_board.arm("router.body", "error", argument=errno.ECONNRESET, after=2)
        cut = await read_all(url)
        assert cut.endswith(b"3\r\none\r\n3\r\ntwo\r\n"), cut
        await comes_to(0, load_of, url)
        assert (await read_all(url)).endswith(b"5\r\nthree\r\n0\r\n\r\n")


@pytest.mark.parametrize("name", ["accept", "connect", "send", "head", "client"])
async def test_one_request_that_hangs_there_holds_up_no_other(fault_board: Switchboard, name: str) -> None:
    point = f"router.{name}"
    async with busy_worker(fault_board) as url:
        fault_board.arm(point, "hang", argument=LONG_MS)
        hanging = asyncio.create_task(post(url))
        await until(lambda: fault_board.points()[point].fired == 1, "it hangs")
        assert (await post(url)).status == 200
        assert not hanging.done()
        fault_board.disarm()
        assert (await hanging).status == 200


async def test_an_answer_that_hangs_between_two_pieces_holds_up_no_other(fault_board: Switchboard) -> None:
    async with one_worker(three_pieces) as (_, url):
        fault_board.arm("router.body", "hang", argument=LONG_MS, after=2)
        hanging = asyncio.create_task(read_all(url))
        await until(lambda: fault_board.points()["router.body"].fired == 1, "it hangs")
        assert (await read_all(url)).endswith(b"0\r\n\r\n")
        assert not hanging.done()
        fault_board.disarm()
        assert (await hanging).endswith(b"3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n")


async def test_a_client_that_resets_leaves_nothing(fault_board: Switchboard) -> None:
    async with one_worker() as (_, url):
        fault_board.arm("router.client", "error", argument=errno.ECONNRESET)
        assert await read_all(url) == b""
        await comes_to(0, load_of, url)
        assert (await post(url)).status == 200


async def test_a_connection_that_its_worker_closes_after_an_answer_is_not_used_again(
    fault_board: Switchboard,
) -> None:
    async with one_worker() as (worker, url):
        fault_board.arm("router.tail", "error", argument=errno.ECONNRESET, after=2)
        carriers = []
        for _ in range(3):
            assert (await post(url)).status == 200
            carriers.append(worker.carriers)
        assert carriers == [1, 1, 2]


async def test_a_worker_whose_checks_fail_is_down_until_they_do_not(fault_board: Switchboard) -> None:
    async with replicas(None) as [worker], router(worker) as url:
        await becomes(url, worker, "up")
        fault_board.arm("router.health", "error", argument=errno.ECONNREFUSED, times=1_000_000)
        await becomes(url, worker, "down")
        fault_board.disarm()
        await becomes(url, worker, "up")


POINTS = ("accept", "connect", "send", "head", "body", "tail", "health", "client")


@pytest.mark.parametrize("point", POINTS)
async def test_a_router_is_killed_at_the_point_in_question(tmp_path: Path, point: str) -> None:
    board = Switchboard.create(tmp_path / "board")
    async with replicas(three_pieces) as [worker]:
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "--port", "0", "--worker-urls", worker.url),
            env=os.environ | {"SGLANG_OMNI_FAULTS": str(tmp_path / "board")},
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async with ending(process):
            while not (found := re.search(rb"listening on (\S+)", line := await process.stderr.readline())):
                assert line, "the router ended before it listened"
            board.arm(f"router.{point}", "kill")
            with contextlib.suppress(ConnectionError):
                await read_all(found[1].decode())
            assert await asyncio.wait_for(process.wait(), PATIENCE) == -signal.SIGKILL
            state = board.points()[f"router.{point}"]
            assert (state.fired, state.fired_pid) == (1, process.pid)
