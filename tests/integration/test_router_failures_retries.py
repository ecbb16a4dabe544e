"""What is asked again, of which worker or connection and how often; and workers that answer only errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

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
    state_of,
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


async def test_a_worker_that_asks_for_time_gets_it() -> None:
    waits = [answering("503 Service Unavailable", "retry-after: 2\r\n")] * 2
    async with replicas(*waits, None) as [*busy, free], router(*busy, free) as url:
        for asked in (1, 2):
            assert {(await post(url)).status for _ in range(9)} == {200}
            assert [len(replica.seen) for replica in busy] == [asked, asked]
            assert {await state_of(url, replica.url) for replica in busy} == {"busy"}
            if asked == 1:
                for replica in busy:
                    await becomes(url, replica, "up")


async def test_when_all_ask_for_time_their_answer_is_passed_on_and_nobody_is_asked_twice() -> None:
    busy = answering("503 Busy", "retry-after: 20\r\n")
    async with replicas(busy, busy, busy) as three, router(*three) as url:
        answer = await post(url)
        assert (answer.status, answer.header("retry-after"), answer.body) == (503, "20", b"503 Busy")
        assert [len(replica.seen) for replica in three] == [1, 1, 1]
        for _ in range(6):
            assert (await post(url)).header("retry-after") == "20"
        assert sum(len(replica.seen) for replica in three) == 9


async def test_what_one_client_has_too_much_of_costs_no_other_its_worker() -> None:
    async def limited(seen: Seen, writer: asyncio.StreamWriter) -> None:
        status = BUSY if seen.header("x-client") == "greedy" else "200 OK"
        writer.write(response(status=status, headers="retry-after: 20\r\n"))

    async with replicas(limited, limited) as both, router(*both) as url:
        for replica in both:
            await becomes(url, replica, "up")
        assert (await post(url, headers="x-client: greedy\r\n")).status == 429
        assert [len(replica.seen) for replica in both] == [1, 1]
        assert {(await post(url)).status for _ in range(8)} == {200}
        assert {await state_of(url, replica.url) for replica in both} == {"up"}


async def test_refusals_keep_their_connections_and_take_no_turns() -> None:
    async with replicas(answering(BUSY), None) as [ill, well], router(ill, well) as url:
        for _ in range(10):
            assert (await post(url)).status == 200
        assert (len(ill.seen), len(well.seen)) == (5, 10)
        assert ill.carriers < 5


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


def breaking_later(breaks: list[int]) -> Any:
    """Answers, but reads the requests of these numbers, works on them for a while, and breaks off."""
    count = 0

    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        if count in breaks:
            await asyncio.sleep(0.3)
            writer.transport.abort()
        else:
            writer.write(response(b"%d" % count))

    return handler


@pytest.mark.parametrize("options", [{"disable_retries": True}, {"retry_max_retries": 0}])
async def test_a_request_that_may_have_been_read_is_not_sent_again(options: dict[str, Any]) -> None:
    async with replicas(breaking_later([2])) as [replica], router(replica, **options) as url:
        assert (await post(url)).body == b"1"
        answer = await post(url)
        assert answer.status == 502
        assert len(replica.seen) == 2
        assert await metric(url, "retries_total") == 0
        assert (await post(url)).body == b"3"


async def test_one_that_is_sent_again_is_a_retry() -> None:
    async with replicas(breaking_later([2])) as [replica], router(replica) as url:
        assert (await post(url)).body == b"1"
        assert (await post(url)).body == b"3"
        assert len(replica.seen) == 3
        assert await metric(url, "retries_total") == 1


async def test_a_worker_gets_one_more_chance_and_no_third() -> None:
    async with replicas(breaking_later([2, 3, 4])) as [replica], router(replica) as url:
        assert (await post(url)).body == b"1"
        assert (await post(url)).status == 502
        assert len(replica.seen) == 3


async def test_what_changes_nothing_may_be_asked_for_again() -> None:
    async with replicas(breaking_later([2])) as [replica], router(replica, disable_retries=True) as url:
        assert (await get(url, "/x")).body == b"1"
        assert (await get(url, "/x")).body == b"3"


async def test_a_connection_that_was_closed_while_idle_costs_nothing() -> None:
    async def once(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"once"))
        await writer.drain()
        writer.close()

    async with replicas(once) as [replica], router(replica, disable_retries=True) as url:
        for _ in range(30):
            assert (await post(url)).body == b"once"
            await asyncio.sleep(0.01)
        assert len(replica.seen) == 30
        assert await metric(url, "retries_total") == 0


async def test_a_kept_connection_is_looked_at_before_it_is_used() -> None:
    """The lane is kept busy by other requests, so that it does not hear of the end by itself."""

    async def once(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"once"))
        await writer.drain()
        await asyncio.sleep(0.4)
        writer.close()

    async with replicas(once) as [replica], router(replica, disable_retries=True) as url:
        for _ in range(2):
            answers = await asyncio.gather(*(post(url) for _ in range(8)))
            assert {answer.status for answer in answers} == {200}
            await asyncio.sleep(0.6)
        assert len(replica.seen) == 16


FOR_GOOD = {"cb_timeout": 60.0}


async def statuses(url: str, count: int) -> list[int]:
    return [(await post(url)).status for _ in range(count)]


async def test_a_worker_that_only_fails_is_put_behind() -> None:
    async with replicas(answering("500 Oops"), None) as [ill, well], router(ill, well, **FOR_GOOD) as url:
        assert (await statuses(url, 12)).count(500) >= 5
        await becomes(url, ill, "failing")
        seen = len(ill.seen)
        assert set(await statuses(url, 10)) == {200}
        assert len(ill.seen) == seen


async def test_resets_count_as_failures() -> None:
    async with replicas(reset, None) as [ill, well], router(ill, well, **FOR_GOOD) as url:
        assert set(await statuses(url, 12)) == {200}
        await becomes(url, ill, "failing")


async def test_a_worker_that_does_well_again_is_back_within_seconds() -> None:
    is_ill = True
    tried, go_on = asyncio.Event(), asyncio.Event()

    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        if tried.is_set():
            await go_on.wait()
        writer.write(response(status="500 Oops" if is_ill else "200 OK"))

    async with replicas(handler, None) as [ill, well], router(ill, well, cb_timeout=1.0) as url:
        await statuses(url, 12)
        await becomes(url, ill, "failing")
        await becomes(url, ill, "half_open")
        # So it stays until a request comes, which may take a night.
        assert (await workers(url))[ill.url]["healthy"]
        assert await metric(url, "worker_up") == 2.0
        # One request tries it; the others that come meanwhile go elsewhere.
        tried.set()
        seen = len(ill.seen)
        trying = [asyncio.ensure_future(post(url)) for _ in range(2)]
        await asyncio.wait(trying, return_when=asyncio.FIRST_COMPLETED)
        assert set(await statuses(url, 6)) == {200}
        assert len(ill.seen) == seen + 1
        go_on.set()
        assert {(await answer).status for answer in trying} == {200, 500}
        is_ill = False
        await becomes(url, ill, "half_open")
        assert set(await statuses(url, 4)) == {200}
        assert (await workers(url))[ill.url]["state"] == "up"
        seen = len(ill.seen)
        assert set(await statuses(url, 4)) == {200}
        assert len(ill.seen) == seen + 2


async def test_a_worker_that_died_begins_anew_when_it_is_back() -> None:
    """Nobody may ask it for a while, at night: only an answer would end what its dead process did."""
    async with replicas(answering("500 Oops"), None) as [ill, well], router(ill, well, **FOR_GOOD) as url:
        await statuses(url, 12)
        await becomes(url, ill, "failing")
        await ill.stop()
        await becomes(url, ill, "down")
        await ill.start()
        await becomes(url, ill, "up")
        health = await get(url, "/health")
        assert health.status == 200


async def test_the_last_worker_is_not_put_behind() -> None:
    async with replicas(answering("500 Oops")) as [only], router(only) as url:
        assert set(await statuses(url, 30)) == {500}
        probed = only.probes
        await until(lambda: only.probes >= probed + 3, "two looks at the fleet since then")
        assert (await workers(url))[only.url]["state"] == "up"
        assert len(only.seen) == 30


async def test_when_the_others_are_gone_a_failing_worker_serves() -> None:
    async with replicas(answering("500 Oops"), None) as [ill, well], router(ill, well, **FOR_GOOD) as url:
        await statuses(url, 12)
        await becomes(url, ill, "failing")
        await well.stop()
        assert set(await statuses(url, 3)) == {500}


async def test_where_all_fail_alike_nobody_is_put_behind() -> None:
    async with replicas(answering("500 Oops"), answering("500 Oops")) as both, router(*both) as url:
        assert set(await statuses(url, 30)) == {500}
        assert {worker["state"] for worker in (await workers(url)).values()} <= {"up", "unknown"}
        assert [len(replica.seen) for replica in both] == [15, 15]


async def test_what_clients_did_wrong_is_not_held_against_a_worker() -> None:
    async with replicas(answering("400 Bad"), None) as [strict, other], router(strict, other) as url:
        assert (await statuses(url, 40)).count(400) == 20


async def test_it_can_be_turned_off() -> None:
    options = {"disable_circuit_breaker": True}
    async with replicas(answering("500 Oops"), None) as [ill, well], router(ill, well, **options) as url:
        assert (await statuses(url, 40)).count(500) == 20
