"""Requests for a model go to workers that serve it, where workers differ."""

from __future__ import annotations

import asyncio
import json

from router_harness import Replica, Seen, comes_to, get, listed, post, replicas, response, router, served_by


async def until_known(url: str, *models: list[str] | None) -> None:
    async def known() -> list[list[str] | None]:
        return [worker["models"] for worker in await listed(url)]

    await comes_to(list(models), known)


async def serving(url: str, model: str, times: int = 6) -> set[str | None]:
    return {await served_by(url, {"model": model}) for _ in range(times)}


def set_models(replica: Replica, *models: str) -> None:
    replica.models = list(models)


async def test_a_model_goes_to_those_that_serve_it() -> None:
    async with replicas(None, None, None) as [one, two, unknown]:
        set_models(one, "a", "shared")
        set_models(two, "shared", "b")
        async with router(one, two, unknown) as url:
            await until_known(url, ["a", "shared"], ["b", "shared"], None)
            assert await serving(url, "a") == {one.url}
            assert await serving(url, "b") == {two.url}
            assert await serving(url, "b:adapter") == {two.url}
            assert await serving(url, "shared") == {one.url, two.url}
            # Who tells nothing may have anything, but is not preferred to who says so.
            assert await serving(url, "c") == {unknown.url}
            assert {await served_by(url, {"prompt": "x"}) for _ in range(6)} == {
                one.url,
                two.url,
                unknown.url,
            }
            by_query = await get(url, "/v1/realtime?x=1&model=b")
            assert by_query.header("x-sglang-omni-worker") == two.url


async def test_a_model_that_nobody_has_is_404_once_all_lists_are_known() -> None:
    async with replicas(None, None) as [one, two]:
        set_models(one, "a")
        set_models(two, "b")
        async with router(one, two) as url:
            await until_known(url, ["a"], ["b"])
            answer = await post(url, b'{"model": "c"}')
            assert answer.status == 404
            error = json.loads(answer.body)["error"]
            assert (error["type"], error["code"], error["param"]) == (
                "invalid_request_error",
                "model_not_found",
                "model",
            )
            assert not one.seen
            assert not two.seen


async def test_an_adapter_that_was_just_loaded_is_found_by_asking_again() -> None:
    async with replicas(None, None) as [one, two]:
        set_models(one, "a")
        set_models(two, "b")
        async with router(one, two) as url:
            await until_known(url, ["a"], ["b"])
            set_models(two, "b", "c")
            assert await serving(url, "c") == {two.url}


async def test_workers_that_are_alike_decide_for_themselves() -> None:
    # SGLang, for one, takes any name for its one model.
    async with replicas(None, None) as [one, two]:
        set_models(one, "a")
        set_models(two, "a")
        async with router(one, two) as url:
            await until_known(url, ["a"], ["a"])
            assert await serving(url, "default") == {one.url, two.url}


async def test_a_model_whose_workers_are_gone_is_503() -> None:
    async def broken(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(status="503 Busy"))

    async with replicas(None, broken) as [one, two]:
        set_models(one, "a")
        set_models(two, "b")
        async with router(one, two) as url:
            await until_known(url, ["a"], ["b"])
            await one.stop()
            assert (await post(url, b'{"model": "a"}')).status == 503
            # Not tried elsewhere either.
            assert (await post(url, b'{"model": "b"}')).status == 503
            assert (len(one.seen), len(two.seen)) == (0, 1)
