"""`/fleet`: what the page learns of a router's fleet, and what it does not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from router_harness import Answer, Handler, Seen, bearer, get, post, replicas, response, router, until

INSIDE = "/pipeline", "/pipeline/load", "/pipeline/requests?id=a%2Fb"


def reported(answer: Answer) -> Any:
    assert answer.status == 200, answer
    return json.loads(answer.body)


def knowing(*ids: str) -> Handler:
    """A worker that knows these requests, and tells what it was asked for."""

    async def answer(seen: Seen, writer: Any) -> None:
        path = seen.line.split(" ")[1]
        body: dict[str, Any] = {"asked": path}
        if path.startswith("/pipeline/requests"):
            body = {
                "requests": [{"id": name, "at": ["think"]} for name in ids if path.endswith(f"id={name}")]
            }
        writer.write(response(json.dumps(body).encode()))

    return answer


async def test_the_fleet_is_reported_with_states_and_loads() -> None:
    async with replicas(None, None) as [one, two], router(one, two, policy="cache_aware") as url:
        two.healthy = False
        for _ in range(3):
            assert (await post(url)).status == 200

        async def states() -> list[str]:
            return [worker["state"] for worker in reported(await get(url, "/fleet"))["workers"]]

        async with asyncio.timeout(60):
            while await states() != ["up", "down"]:
                await asyncio.sleep(0.05)
        fleet = reported(await get(url, "/fleet"))
        assert fleet["policy"] == "cache_aware"
        assert fleet["requests"] == {"running": 0, "waiting": 0}
        assert {"prompt_bytes_total", "matched_bytes_total"} <= fleet["counts"].keys()
        assert sum(worker["requests"] for worker in fleet["workers"]) == 3
        assert all(
            {"load", "failures", "draining", "tree_bytes"} <= worker.keys() for worker in fleet["workers"]
        )


async def test_a_request_at_work_and_a_draining_worker_are_seen() -> None:
    release = asyncio.Event()

    async def slow(_seen: Seen, writer: Any) -> None:
        await release.wait()
        writer.write(response())

    async with replicas(slow) as [one], router(one) as url:
        asked = asyncio.create_task(post(url))
        await until(lambda: bool(one.seen), "the request")
        assert (await post(url, path="/workers/drain?url=" + one.url)).status == 200
        fleet = reported(await get(url, "/fleet"))
        (worker,) = fleet["workers"]
        assert (worker["load"], worker["draining"], fleet["requests"]["running"]) == (1, True, 1)
        release.set()
        assert (await asked).status == 200


async def test_a_workers_inside_is_its_own_answer() -> None:
    async with replicas(knowing("a/b"), knowing()) as [one, two], router(one, two) as url:
        ids = [worker["id"] for worker in reported(await get(url, "/fleet"))["workers"]]
        for path in INSIDE[:2]:
            assert reported(await get(url, f"/fleet/{ids[1]}{path}")) == {"asked": path}
        assert one.seen == []
        assert reported(await get(url, f"/fleet/{ids[1]}{INSIDE[2]}")) == {"requests": []}


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/fleet/999999/pipeline", 404, "worker_not_found"),
        ("/fleet/x/pipeline", 400, "invalid_parameter"),
        ("/fleet/", 400, "invalid_parameter"),
        ("/fleet/{id}", 400, "invalid_parameter"),
        ("/fleet/{id}/get_server_info", 400, "invalid_parameter"),
        ("/fleet/{id}/pipeline/../get_server_info", 400, "invalid_parameter"),
        ("/fleet/{id}/pipeline/load/x", 400, "invalid_parameter"),
    ],
)
async def test_nothing_else_of_a_worker_is_reached(path: str, status: int, code: str) -> None:
    async with replicas(None) as [one], router(one) as url:
        (worker,) = reported(await get(url, "/fleet"))["workers"]
        answer = await get(url, path.replace("{id}", str(worker["id"])))
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
        assert one.seen == []


async def test_a_request_is_found_at_the_worker_that_has_it() -> None:
    async with replicas(knowing(), knowing("mine")) as [one, two], router(one, two) as url:
        ids = [worker["id"] for worker in reported(await get(url, "/fleet"))["workers"]]
        found = reported(await get(url, "/fleet/requests?id=mine"))
        assert found == {"requests": [{"id": "mine", "at": ["think"], "worker": ids[1]}]}
        assert len(one.seen) == len(two.seen) == 1
        assert reported(await get(url, "/fleet/requests?id=other")) == {"requests": []}


async def test_workers_of_another_kind_are_left_out() -> None:
    async def other(_seen: Seen, writer: Any) -> None:
        writer.write(response(b'{"requests": 3}'))

    async def none(_seen: Seen, writer: Any) -> None:
        writer.write(response(b"no such path", "404 No"))

    async with replicas(other, none, knowing("mine")) as workers, router(*workers) as url:
        (found,) = reported(await get(url, "/fleet/requests?id=mine"))["requests"]
        ids = [worker["id"] for worker in reported(await get(url, "/fleet"))["workers"]]
        assert found["worker"] == ids[2]
        answer = await get(url, f"/fleet/{ids[1]}/pipeline")
        assert answer.status == 404


async def test_clients_need_their_key_and_learn_no_address() -> None:
    options: dict[str, Any] = {"api_key": ["client"], "admin_api_key": "admin", "expose_worker_urls": False}
    async with replicas(knowing("mine")) as [one], router(one, **options) as url:
        (worker,) = reported(await get(url, "/fleet", bearer("client")))["workers"]
        paths = ["/fleet", "/fleet/requests?id=mine", *(f"/fleet/{worker['id']}{path}" for path in INSIDE)]
        for path in paths:
            assert (await get(url, path)).status == 401
            answer = await get(url, path, bearer("client"))
            assert answer.status == 200
            assert str(one.port).encode() not in answer.body
        # Whose a request is goes with the question, so that a worker tells only its owner.
        owners = {seen.header("x-sglang-omni-owner") for seen in one.seen}
        assert len(owners) == 1
        assert owners != {None}
        await one.stop()
        answer = await get(url, f"/fleet/{worker['id']}/pipeline", bearer("client"))
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "worker_failed")
        assert str(one.port).encode() not in answer.body


async def test_a_page_knows_a_router_by_the_workers_name() -> None:
    async with replicas(None) as [one], router(one) as url:
        answer = await get(url, "/pipeline")
        assert answer.header("x-sglang-omni-worker") is not None
