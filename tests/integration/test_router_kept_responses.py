"""Kept responses behind routers: their ids name the server that has them, and each router finds it so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import openai
import pytest
from openai.types.responses import Response
from own_pipelines import ROOT, served
from router_harness import (
    Replica,
    Seen,
    assert_error,
    becomes,
    change,
    get,
    listed,
    post,
    replicas,
    response,
    router,
    until,
)

from sglang_omni._core import router_policies

PATH = "/v1/responses"


async def named(replica: Replica, *names: str) -> None:
    """Has a replica list the names of its servers, and waits until its router knows."""
    replica.health_headers = f"x-sglang-omni-servers: {', '.join(names)}\r\n"
    seen = replica.probes
    await until(lambda: replica.probes > seen + 1, "health checks")


async def follow(url: str, response_id: str) -> str | None:
    body = json.dumps({"input": "And now?", "previous_response_id": response_id, "model": "m"}).encode()
    return (await post(url, body, PATH)).header("x-sglang-omni-worker")


@pytest.mark.parametrize("policy", router_policies())
async def test_a_request_for_a_kept_response_goes_to_its_keeper(policy: str) -> None:
    async with replicas(None, None, None) as fleet, router(*fleet, policy=policy) as url:
        for replica, name in zip(fleet, ("a0", "b0", "c0"), strict=True):
            await named(replica, name)
        for _ in range(6):
            for replica, name in zip(fleet, ("a0", "b0", "c0"), strict=True):
                kept = f"resp_{name}_1"
                assert await follow(url, kept) == replica.url
                for method, path in (
                    ("GET", kept),
                    ("GET", f"{kept}/input_items?limit=1"),
                    ("DELETE", kept),
                    ("POST", f"{kept}/cancel"),
                ):
                    answer = await change(url, method, f"{PATH}/{path}")
                    assert answer.header("x-sglang-omni-worker") == replica.url, path
        # Others' ids name no server.
        assert {(await get(url, f"{PATH}/{each}")).status for each in ("resp_1", "resp_d0_1", "%ff")} == {200}


async def test_each_router_finds_the_keeper_also_behind_another() -> None:
    async with (
        replicas(None, None, None) as fleet,
        router(*fleet[:2]) as near,
        router(fleet[2], near) as far,
        router(*fleet) as beside,
    ):
        for replica, name in zip(fleet, ("a0", "b0", "c0"), strict=True):
            await named(replica, name)

        async def all_are_known() -> bool:
            return len((await get(far, "/health")).header("x-sglang-omni-servers") or "") == len("a0, b0, c0")

        await until(all_are_known, "the far router knows what is behind the near one")
        for url in (far, beside):
            for replica, name in list(zip(fleet, ("a0", "b0", "c0"), strict=True)) * 3:
                replica.seen.clear()
                await follow(url, f"resp_{name}_1")
                assert len(replica.seen) == 1


async def test_a_keeper_is_asked_alone() -> None:
    """Another would say that there is no such response."""

    async def is_busy(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"busy", "503 Busy", "retry-after: 9\r\n"))

    async with replicas(None, None) as [other, keeper], router(other, keeper) as url:
        await named(keeper, "b0")
        await change(url, "POST", f"/workers/drain?url={keeper.url}")
        for _ in range(4):
            assert await follow(url, "resp_b0_1") == keeper.url
        keeper.handler = is_busy
        assert (await get(url, f"{PATH}/resp_b0_1")).status == 503
        await keeper.stop()
        await becomes(url, keeper, "down")
        body = b'{"previous_response_id": "resp_b0_1"}'
        assert_error(await post(url, body, PATH), 503, "last one tried", code="workers_down")
        assert other.seen == []
        # Its successor, and others, have lost what it kept.
        keeper.health_headers = ""
        keeper.handler = keeper.answer_ok
        await keeper.start()
        await becomes(url, keeper, "up")
        await named(keeper, "b1")
        assert {await follow(url, "resp_b0_1") for _ in range(4)} == {other.url}
        assert [worker["draining"] for worker in await listed(url)] == [False, True]


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    with served(ROOT / "examples/tutorial", "--config", "step1_functions.yaml", "--dp-size", "2") as url:
        yield url


@pytest.mark.long
def test_a_conversation_goes_on_in_a_fleet(fleet: str) -> None:
    client = openai.OpenAI(base_url=f"{fleet}/v1", api_key="none", max_retries=0)
    by_server: dict[str, Response] = {}
    for number in range(64):
        begun = client.responses.create(model="pig-latin", input=f"{number} hello")
        by_server[begun.id.split("_")[1]] = begun
        if len(by_server) == 2:
            break
    assert len(by_server) == 2, "one replica gave all answers"
    for begun in by_server.values():
        last = begun
        for _ in range(10):
            last = client.responses.create(model="pig-latin", input="hello", previous_response_id=last.id)
        assert client.responses.retrieve(last.id).output_text == last.output_text
        assert len(list(client.responses.input_items.list(last.id, limit=100))) == 21
        with pytest.raises(openai.BadRequestError, match="nothing to cancel"):
            client.responses.cancel(last.id)
        client.responses.delete(last.id)
        with pytest.raises(openai.NotFoundError, match="send the conversation as input"):
            client.responses.retrieve(last.id)
