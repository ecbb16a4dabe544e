"""The requests of a session meet at one worker, whatever the policy, while that can take them."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest
from router_harness import (
    Holding,
    answering,
    bearer,
    becomes,
    change,
    comes_to,
    listed,
    metric,
    replicas,
    router,
    served_by,
    until,
    websocket_echo,
)

from sglang_omni._core import router_policies


async def of_session(url: str, name: str, prompt: str = "", headers: str = "") -> str | None:
    body = {"messages": [{"role": "user", "content": prompt}]}
    return await served_by(url, body, f"x-session-id: {name}\r\n{headers}")


@pytest.mark.parametrize("policy", router_policies())
async def test_a_session_stays_with_its_worker_under_every_policy(policy: str) -> None:
    async with replicas(None, None, None) as fleet, router(*fleet, policy=policy) as url:
        homes: dict[str, set[str | None]] = {}
        for turn in range(6):
            for session in ("ann", "bob", "cid", "dan"):
                homes.setdefault(session, set()).add(await of_session(url, session, f"{turn} of {session}"))
                await served_by(url, {"messages": [{"role": "user", "content": f"{turn}"}]})
        assert [len(workers) for workers in homes.values()] == [1, 1, 1, 1]


async def test_requests_without_a_session_go_as_before() -> None:
    async with replicas(None, None, None) as fleet, router(*fleet) as url:
        assert len({await served_by(url, {}) for _ in range(3)}) == 3
        assert len({await served_by(url, {}, "x-session-id: \r\n") for _ in range(3)}) == 3
        assert await metric(url, "sessions_begun_total") == 0


async def test_a_session_moves_with_the_request_that_its_worker_could_not_take() -> None:
    async with replicas(None, None) as fleet, router(*fleet) as url:
        home = await of_session(url, "ann")
        [worker] = [worker for worker in fleet if worker.url == home]
        [other] = [worker for worker in fleet if worker.url != home]
        # A refusal that is about the worker: the same request goes on to the other, and the session with it.
        worker.handler = answering("503 Busy", "retry-after: 1\r\n")
        assert await of_session(url, "ann") == other.url
        worker.handler = worker.answer_ok
        await becomes(url, worker, "up")
        assert {await of_session(url, "ann") for _ in range(4)} == {other.url}
        # Draining, then gone.
        await change(url, "POST", f"/workers/drain?url={other.url}")
        assert {await of_session(url, "ann") for _ in range(4)} == {worker.url}
        await change(url, "POST", f"/workers?url={other.url}")
        assert {await of_session(url, "ann") for _ in range(4)} == {worker.url}
        await change(url, "DELETE", f"/workers?url={worker.url}")
        assert {await of_session(url, "ann") for _ in range(4)} == {other.url}
        assert await metric(url, "sessions_begun_total") == 1
        assert await metric(url, "sessions_moved_total") == 3


async def test_each_clients_sessions_are_its_own() -> None:
    async with replicas(None, None) as fleet, router(*fleet, api_key=["one", "two"]) as url:
        homes = [await of_session(url, "1", headers=bearer(key)) for key in ("one", "two")]
        assert len(set(homes)) == 2, "each began a session of its own, in turn"
        again = [await of_session(url, "1", headers=bearer(key)) for key in ("two", "one", "one")]
        assert again == [homes[1], homes[0], homes[0]]


async def test_a_session_waits_at_its_worker_though_others_are_idle() -> None:
    async with replicas(None, None) as fleet, router(*fleet, policy="least_load") as url:
        home = await of_session(url, "ann")
        [worker] = [worker for worker in fleet if worker.url == home]
        worker.handler = holding = Holding()
        waiting = [asyncio.create_task(of_session(url, "ann", str(turn))) for turn in range(3)]
        await until(lambda: len(worker.seen) == 4, "all of the session's requests are at its worker")
        holding.finish.set()
        assert {await each for each in waiting} == {home}


async def test_a_websocket_goes_where_its_session_is() -> None:
    async with websocket_echo() as one, websocket_echo() as two, router(one, two) as url:
        names: dict[str, set[str]] = {}
        async with aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as sockets:
            for turn in range(6):
                name = f"call {turn % 2}"
                connecting = http.ws_connect(f"{url}/v1/realtime", headers={"x-session-id": name})
                socket = await sockets.enter_async_context(connecting)
                worker = socket._response.headers["x-sglang-omni-worker"]
                names.setdefault(name, set()).add(worker)
                await socket.send_str("hello")
                assert await socket.receive_str() == "hello"
        assert [len(workers) for workers in names.values()] == [1, 1]
        assert len(set.union(*names.values())) == 2


async def test_sessions_are_for_the_workers_of_their_model() -> None:
    async with replicas(None, None) as fleet:
        small, large = fleet
        small.models, large.models = ["small"], ["large"]
        async with router(*fleet) as url:
            await comes_to([["small"], ["large"]], models_of_workers, url)
            for _ in range(3):
                for worker, model in ((small, "small"), (large, "large")):
                    assert await served_by(url, {"model": model}, "x-session-id: ann\r\n") == worker.url


async def models_of_workers(url: str) -> list[list[str] | None]:
    return [worker["models"] for worker in await listed(url)]
