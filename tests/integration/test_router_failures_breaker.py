"""Workers that answer, but only errors: behind the others while these do well, and back soon."""

from __future__ import annotations

import asyncio

from router_harness import Seen, answering, becomes, post, replicas, reset, response, router, workers

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

    async with replicas(handler, None) as [ill, well], router(ill, well) as url:
        await statuses(url, 12)
        await becomes(url, ill, "failing")
        await becomes(url, ill, "half_open")
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


async def test_the_last_worker_is_not_put_behind() -> None:
    async with replicas(answering("500 Oops")) as [only], router(only) as url:
        assert set(await statuses(url, 30)) == {500}
        await asyncio.sleep(0.6)  # Longer than two looks at the fleet; there is nothing to wait for.
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
