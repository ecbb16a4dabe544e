"""Routers behind routers, and those that lead back to themselves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence

import pytest
from router_harness import becomes, change, comes_to, get, listed, post, replicas, router, state_of, workers

from sglang_omni.supervision.ports import bind


async def test_a_router_that_is_its_own_worker_finds_out(held_port: int) -> None:
    itself = f"http://127.0.0.1:{held_port}"
    async with replicas(None) as [replica], router(itself, replica, port=held_port) as url:
        assert url == itself
        await comes_to([replica.url], urls_of, url)
        assert {(await post(url)).status for _ in range(4)} == {200}


async def urls_of(url: str) -> list[str]:
    return [worker["url"] for worker in await listed(url)]


@contextlib.asynccontextmanager
async def ring(*extra: Sequence[str]) -> AsyncIterator[list[str]]:
    """Routers of which each has the next one as a worker, the last one the first, and some others besides."""
    async with contextlib.AsyncExitStack() as held:
        numbers = [held.enter_context(bind("127.0.0.1")).getsockname()[1] for _ in extra]
        urls = [f"http://127.0.0.1:{number}" for number in numbers]
        for index, number in enumerate(numbers):
            following = urls[(index + 1) % len(urls)]
            await held.enter_async_context(router(following, *extra[index], port=number))
        yield urls


@pytest.mark.parametrize("size", [2, 3])
async def test_a_ring_of_routers_is_opened_at_one_place(size: int) -> None:
    async with replicas(None) as [replica], ring([replica.url], *[[]] * (size - 1)) as urls:
        # The only way that is given up is that of the router that has another.
        wanted = ["loop", *["up"] * (size - 1)]

        async def states() -> list[str]:
            return [await state_of(url, urls[(index + 1) % size]) for index, url in enumerate(urls)]

        await comes_to(wanted, states)
        assert {(await post(url)).status for url in urls for _ in range(4)} == {200}
        for path in ("/flush_cache", "/abort_request"):
            for url in urls:
                replica.seen.clear()
                await change(url, "POST", path, {"rid": "a"})
                assert len(replica.seen) == 1, "it was asked once"


async def test_where_nothing_is_behind_a_ring_the_error_says_so() -> None:
    async with ring([], []) as urls:
        pairs = (urls, urls[::-1])
        for url, other in pairs:
            await becomes(url, other, "loop")
        for url, other in pairs:
            for answer in (await post(url), await get(url, "/v1/models")):
                assert answer.status == 508
                error = json.loads(answer.body)["error"]
                assert (error["type"], error["code"]) == ("server_error", "routing_loop")
                assert f"take this router out of the workers of {other}" in error["message"]
            assert (await get(url, "/health")).status == 508
            assert (await get(url, "/readiness")).status == 503


async def test_a_ring_that_is_undone_is_found_so() -> None:
    async with replicas(None) as [replica], ring([replica.url], []) as (first, second):
        # It has another worker.
        await becomes(first, second, "loop")
        await becomes(second, first, "up")
        await change(second, "DELETE", "/workers", {"url": first})
        await becomes(first, second, "down")
        await change(second, "POST", "/workers", {"url": replica.url})
        await becomes(first, second, "up")


async def test_the_way_that_closes_a_ring_is_the_one_given_up() -> None:
    async with replicas(None) as [replica], router(replica) as back, router(back) as front:
        await becomes(front, back, "up")
        await change(back, "POST", "/workers", {"url": front})
        await becomes(back, front, "loop")
        assert (await workers(front))[back]["state"] == "up"
        assert {(await post(url)).status for url in (front, back) for _ in range(4)} == {200}


async def test_a_ring_ends_with_one_of_its_routers() -> None:
    async with replicas(None) as [replica], router() as last, contextlib.AsyncExitStack() as stops:
        middle = await stops.enter_async_context(router(last))
        async with router(middle, replica) as first:

            async def known() -> int:
                return len(((await get(first, "/health")).header("x-sglang-omni-routers") or "").split(", "))

            await comes_to(3, known)
            await change(last, "POST", "/workers", {"url": first})
            await becomes(last, first, "loop")
            await stops.aclose()
            await becomes(last, first, "up")
            assert (await post(last)).status == 200
