"""Workers that refuse, reset, answer 503, break off or come back, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json

import aiohttp
import pytest
from router_harness import (
    Replica,
    Seen,
    asking,
    becomes,
    get,
    metric,
    post,
    read_head,
    replicas,
    response,
    router,
)
from waiting import PATIENCE


async def test_a_worker_that_refuses_connections_costs_no_request() -> None:
    async with replicas(None, None) as [dead, alive]:
        await dead.stop()
        # Probes are kept out of it: the first request is what finds out.
        async with router(dead, alive, probe_interval=3600.0) as url:
            answers = [await post(url) for _ in range(6)]
        assert {answer.status for answer in answers} == {200}
        assert {answer.header("x-sglang-omni-worker") for answer in answers} == {alive.url}


async def test_nothing_is_replayed_after_the_first_byte_and_the_cut_shows() -> None:
    received = asyncio.Event()

    async def half(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhalf \r\n")
        await received.wait()
        writer.transport.abort()

    async with replicas(half, half) as both, router(*both) as url, aiohttp.ClientSession() as session:
        answer = await session.post(f"{url}/v1/chat/completions", json={"stream": True})
        assert await answer.content.readexactly(5) == b"half "
        received.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()
        assert sum(len(replica.seen) for replica in both) == 1


async def test_all_down_is_a_quick_503() -> None:
    async with replicas(None, None) as both:
        for replica in both:
            await replica.stop()
        async with router(*both) as url:
            answer = await post(url)
            assert (answer.status, answer.header("retry-after")) == (503, "1")
            error = json.loads(answer.body)["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["code"], error["type"]) == ("workers_down", "server_error")
            assert "no worker could serve" in error["message"]
            assert (await get(url, "/health")).status == 503


async def test_a_lone_worker_that_is_back_serves_the_next_request() -> None:
    async with replicas(None) as [only], router(only, probe_interval=3600.0) as url:
        await only.stop()
        assert [(await post(url)).status for _ in range(3)] == [503] * 3
        await only.start()
        # No health check has said so yet.
        assert (await post(url)).status == 200


async def test_no_workers_at_all() -> None:
    async with router() as url:
        answer = await post(url)
        assert answer.status == 503
        assert "POST /workers" in json.loads(answer.body)["error"]["message"]


async def test_a_revived_worker_is_taken_back() -> None:
    async with replicas(None, None) as [one, other], router(one, other) as url:
        await becomes(url, one, "up")
        await one.stop()
        await becomes(url, one, "down")
        assert {(await post(url)).header("x-sglang-omni-worker") for _ in range(4)} == {other.url}
        await one.start()
        await becomes(url, one, "up")
        served = {(await post(url)).header("x-sglang-omni-worker") for _ in range(4)}
        assert served == {one.url, other.url}


async def test_a_worker_that_calls_itself_unhealthy_gets_nothing() -> None:
    async with replicas(None, None) as [one, other], router(one, other) as url:
        await becomes(url, one, "up")
        one.healthy = False
        await becomes(url, one, "down")
        assert {(await post(url)).header("x-sglang-omni-worker") for _ in range(4)} == {other.url}
        assert one.seen == []


async def test_the_last_worker_is_never_shut_out() -> None:
    async with replicas(None) as [only], router(only) as url:
        await becomes(url, only, "up")
        only.healthy = False
        await becomes(url, only, "down")
        assert (await get(url, "/health")).status == 503
        assert (await post(url)).status == 200


async def test_connections_are_reused() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    answers = itertools.cycle([chunked, response()])

    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))

    async with replicas(handler) as [replica], router(replica) as url:
        for _ in range(10):
            assert (await post(url)).body == b"ok"
        # Or none: those of health checks are kept too.
        assert await metric(url, "worker_connections_total") <= 1


async def test_workers_killed_and_revived_under_load_cost_no_request() -> None:
    async with replicas(None, None, None) as all_three, router(*all_three, threads=2) as url:
        stop = asyncio.Event()

        async def client(session: aiohttp.ClientSession) -> list[int]:
            statuses = []
            while not stop.is_set():
                async with session.post(f"{url}/v1/chat/completions", json={"prompt": "p"}) as answer:
                    statuses.append(answer.status)
                    await answer.read()
            return statuses

        async def unrest(victims: list[Replica]) -> None:
            for victim in victims * 3:
                await victim.stop()
                await asyncio.sleep(0.1)
                await victim.start()
                await asyncio.sleep(0.2)
            stop.set()

        async with aiohttp.ClientSession() as session:
            results = await asyncio.gather(*(client(session) for _ in range(8)), unrest(all_three[:2]))
        statuses = [status for result in results[:-1] for status in result or []]
        assert len(statuses) > 20
        assert set(statuses) == {200}


async def test_an_answer_of_known_length_that_is_cut_ends_short() -> None:
    async def half(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async with replicas(half, half) as both, router(*both) as url:
        reader, writer = await asking(url, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
        _, headers = await read_head(reader)
        assert ("content-length", "10") in headers
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await asyncio.wait_for(reader.readexactly(10), PATIENCE)
        writer.close()
        assert sum(len(replica.seen) for replica in both) == 1


async def test_a_stream_that_is_cut_has_no_last_chunk() -> None:
    async def half(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhalf \r\n")
        await writer.drain()
        writer.close()  # In good order, but for the end that is missing.

    async with replicas(half) as [replica], router(replica) as url:
        reader, writer = await asking(url, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
        await read_head(reader)
        with contextlib.suppress(ConnectionResetError):
            received = await asyncio.wait_for(reader.read(5), PATIENCE)
            while piece := await asyncio.wait_for(reader.read(100), PATIENCE):
                received += piece
        assert received == b"5\r\nhalf \r\n"
        writer.close()


async def test_a_worker_known_by_name() -> None:
    async with replicas(None) as [replica], router(f"http://localhost:{replica.port}") as url:
        assert (await post(url)).header("x-sglang-omni-worker") == f"http://localhost:{replica.port}"


async def test_a_name_that_is_not_found_is_a_worker_that_is_down() -> None:
    nowhere = "http://no-such-replica.invalid:1"
    async with replicas(None) as [well], router(nowhere, well) as url:
        assert {(await post(url)).status for _ in range(4)} == {200}

        await becomes(url, nowhere, "down")
        await well.stop()
        answer = await asyncio.wait_for(post(url), PATIENCE)
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        await well.start()
        await becomes(url, well, "up")
        assert (await post(url)).status == 200


async def test_slow_workers_slow_no_others() -> None:
    finish = asyncio.Event()

    async def slow(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await finish.wait()
        writer.write(response(b"slow"))

    async with replicas(slow, None) as [late, quick], router(late, quick, policy="least_load") as url:
        waiting = asyncio.ensure_future(post(url))
        while not late.seen:
            await post(url)
        # What has a choice goes where it is quick.
        assert [(await post(url)).body for _ in range(20)] == [b"ok"] * 20
        assert len(late.seen) == 1
        finish.set()
        assert (await waiting).status == 200
