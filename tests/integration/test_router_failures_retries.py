"""What is asked again of another worker, how often, and what is not."""

from __future__ import annotations

import asyncio
import json

import pytest
from router_harness import (
    Seen,
    answering,
    assert_error,
    becomes,
    get,
    metric,
    post,
    replicas,
    reset,
    response,
    router,
    until,
    workers,
)

BUSY = "429 Too Many Requests"


@pytest.mark.parametrize("status", [BUSY, "502 Bad Gateway", "503 Service Unavailable"])
async def test_an_unavailable_answer_is_asked_for_elsewhere(status: str) -> None:
    async with replicas(answering(status), None) as [ill, well], router(ill, well) as url:
        answers = [await post(url, b'{"prompt": "p"}') for _ in range(4)]
        assert [answer.body for answer in answers] == [b"ok"] * 4
        assert {seen.body for seen in well.seen} == {b'{"prompt": "p"}'}
        assert await metric(url, "retries_total") == len(ill.seen) > 0


@pytest.mark.parametrize("status", ["500 Oops", "501 No", "504 Late", "400 Bad", "404 None"])
async def test_other_errors_are_the_clients_to_see(status: str) -> None:
    async with replicas(answering(status), answering(status)) as both, router(*both) as url:
        answer = await post(url)
        assert (answer.line, answer.body) == (f"HTTP/1.1 {status}", status.encode())
        assert sum(len(replica.seen) for replica in both) == 1


async def test_when_all_are_unavailable_the_last_answer_is_passed_on() -> None:
    async with replicas(answering("503 Busy"), answering("503 Busy")) as both, router(*both) as url:
        answer = await post(url)
        assert (answer.line, answer.body) == ("HTTP/1.1 503 Busy", b"503 Busy")
        assert [len(replica.seen) for replica in both] == [1, 1]


@pytest.mark.parametrize("status", [BUSY, "503 Service Unavailable"])
async def test_a_worker_that_asks_for_time_gets_it(status: str) -> None:
    async with (
        replicas(answering(status, "retry-after: 2\r\n"), None) as [busy, free],
        router(busy, free) as url,
    ):
        assert {(await post(url)).status for _ in range(8)} == {200}
        assert len(busy.seen) == 1
        assert (await workers(url))[busy.url]["state"] == "busy"
        await becomes(url, busy, "up")
        assert {(await post(url)).status for _ in range(4)} == {200}
        assert len(busy.seen) == 2


async def test_when_all_ask_for_time_their_answer_is_passed_on_and_nobody_is_asked_twice() -> None:
    busy = answering(BUSY, "retry-after: 20\r\n")
    async with replicas(busy, busy, busy) as three, router(*three) as url:
        answer = await post(url)
        assert (answer.status, answer.header("retry-after"), answer.body) == (429, "20", BUSY.encode())
        assert [len(replica.seen) for replica in three] == [1, 1, 1]
        for _ in range(6):
            assert (await post(url)).header("retry-after") == "20"
        assert sum(len(replica.seen) for replica in three) == 9


async def test_a_worker_without_the_model_is_not_asked_instead() -> None:
    unavailable = answering("503 Service Unavailable")
    async with replicas(unavailable, None, None) as three:
        for replica, model in zip(three, ["small", "large", "large"], strict=True):
            replica.models = [model]
        async with router(*three) as url:
            for replica in three:
                await becomes(url, replica, "up")

            async def kept_apart() -> bool:
                answers = [await post(url, b'{"model": "small"}') for _ in range(3)]
                return {answer.status for answer in answers} == {503}

            await until(kept_apart, "the router knows who serves what")
            seen = [len(replica.seen) for replica in three]
            answer = await post(url, b'{"model": "small"}')
            assert (answer.status, answer.body) == (503, b"503 Service Unavailable")
            assert [len(replica.seen) for replica in three] == [seen[0] + 1, seen[1], seen[2]]


async def test_a_reset_before_the_first_byte_is_retried_elsewhere() -> None:
    async with replicas(reset, None) as [ill, well], router(ill, well) as url:
        assert {(await post(url)).status for _ in range(4)} == {200}
        assert len(ill.seen) > 0
        assert len(well.seen) == 4


async def test_a_request_that_ends_connections_goes_to_two_workers_and_no_further() -> None:
    async with replicas(*[reset] * 6) as six, router(*six) as url:
        answer = await post(url)
        assert_error(answer, 502, code="workers_lost")
        assert sum(len(replica.seen) for replica in six) == 2


async def test_a_request_that_kills_workers_on_kept_connections_kills_two() -> None:
    """A worker that dies takes its port with it: the connection that it had cannot be replaced."""

    async def fragile(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if b"deadly" in seen.body:
            # They are told apart by their connections: the request is the same at each.
            port = writer.get_extra_info("sockname")[1]
            await next(replica for replica in five if replica.port == port).stop()
        else:
            writer.write(response())

    async with replicas(*[fragile] * 5) as five, router(*five, probe_interval=3600.0) as url:
        for _ in range(10):
            assert (await post(url)).status == 200
        answer = await post(url, b'{"prompt": "deadly"}')
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "workers_lost")
        killed = [replica for replica in five if any(b"deadly" in seen.body for seen in replica.seen)]
        assert len(killed) == 2
        assert {(await post(url)).status for _ in range(6)} == {200}


async def test_workers_that_cannot_be_reached_do_not_count_as_lost() -> None:
    async with replicas(None, None, None, reset, None) as five:
        for replica in five[:3]:
            await replica.stop()
        async with router(*five, probe_interval=3600.0) as url:
            assert {(await post(url)).status for _ in range(5)} == {200}
            assert len(five[4].seen) == 5


async def test_retries_are_counted_by_request() -> None:
    refusing = answering("503 Busy")
    async with replicas(*[refusing] * 6) as six, router(*six, retry_max_retries=1) as url:
        assert (await post(url)).status == 503
        assert sum(len(replica.seen) for replica in six) == 2


async def test_retries_can_be_turned_off() -> None:
    async with replicas(reset, None, None) as [ill, dead, well]:
        await dead.stop()
        async with router(ill, dead, well, disable_retries=True, probe_interval=3600.0) as url:
            statuses = [(await post(url)).status for _ in range(6)]
        # What reached no worker is still sent to another one.
        assert len(ill.seen) == statuses.count(502) > 0
        assert len(well.seen) == statuses.count(200) > 0
        assert len(statuses) == len(ill.seen) + len(well.seen)


async def test_a_fleet_that_fails_is_not_asked_several_times_for_each_request() -> None:
    unavailable = answering("503 Service Unavailable")
    async with replicas(*[unavailable] * 4) as four, router(*four, disable_circuit_breaker=True) as url:
        count = 2000
        answered = 0
        while answered < count:
            answers = await asyncio.gather(*(post(url) for _ in range(50)))
            assert {answer.status for answer in answers} == {503}
            answered += 50
        attempts = sum(len(replica.seen) for replica in four)
        refused = await metric(url, "retries_refused_total")
        assert refused > 0
        # A fifth of the requests, what was saved, and ten a second, of which the test takes some.
        assert count < attempts < count * 1.2 + 256 + 10 * 60
        assert attempts == count + await metric(url, "retries_total")


async def test_a_streamed_upload_is_not_sent_twice() -> None:
    async with replicas(reset, reset) as both, router(*both) as url:
        answer = await post(url, b"x" * 3_000_000)
        assert answer.status == 502
        assert "cannot be sent again" in json.loads(answer.body)["error"]["message"]
        assert sum(len(replica.seen) for replica in both) == 1


async def test_a_streamed_upload_that_could_not_be_sent_goes_elsewhere() -> None:
    async with replicas(None, None) as [dead, alive]:
        await dead.stop()
        async with router(dead, alive, probe_interval=3600.0) as url:
            for _ in range(2):
                assert (await post(url, b"x" * 3_000_000)).status == 200
            assert (await get(url, "/health")).status in (200, 503)
        assert [len(seen.body) for seen in alive.seen] == [3_000_000] * 2
