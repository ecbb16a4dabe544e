"""An API worker's application and the main process's end of it, in one event loop."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from waiting import until

from sglang_omni.client import Client
from sglang_omni.proto import CompleteMessage, DuplicateRequest, OmniRequest, StreamMessage, Unavailable
from sglang_omni.serve import create_app
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.front.admission import AdmissionLimits
from sglang_omni.serve.state import AppState, Capabilities
from sglang_omni.serve.workers.app import WorkerSettings, worker_app
from sglang_omni.serve.workers.link import WorkerLink
from sglang_omni.serve.workers.peer import WorkerPeer

OWN = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/generate",
)


LARGE = "on and on" + " " * 200_000


class Counter:
    """The coordinator: counts to three, or does what the prompt says."""

    terminal_stages = frozenset({"count"})

    def __init__(self) -> None:
        self.running: set[str] = set()

    async def answer(self, request_id: str, request: OmniRequest, take: Any) -> CompleteMessage:
        prompt = request.inputs["prompt"].strip()
        self.running.add(request_id)
        try:
            if prompt == "fail":
                raise Unavailable("stage 'count': out of numbers")
            if prompt == "twice":
                raise DuplicateRequest("it is running")
            if prompt == "abort":
                raise asyncio.CancelledError
            for number in range(3):
                token = {"modality": "text", "text": str(number), "token_ids": [number]}
                if take is not None:
                    assert take(StreamMessage(request_id, "count", token, None, "count", "text"))
                    await asyncio.sleep(0)
            while prompt == "on and on":
                await asyncio.sleep(3600)
            return CompleteMessage(request_id, "count", True, {"text": "012", "finish_reason": "stop"})
        finally:
            self.running.remove(request_id)


class Both:
    """Both processes.

    Attributes:
        http: A client of the worker.
        forwarded: The paths of the requests that came to the main process.
    """

    def __init__(self) -> None:
        self.coordinator = Counter()
        self.forwarded: list[str] = []
        limits = AdmissionLimits(max_running=2, queue_size=1, queue_timeout=900)
        self.app = create_app(Client(self.coordinator), model_name="m", limits=limits)  # type: ignore[arg-type]
        self.server: AppState = self.app.state.server
        self.http: httpx.AsyncClient

    async def main_app(self, scope: Any, receive: Any, send: Any) -> None:
        self.forwarded.append(scope["path"])
        await self.app(scope, receive, send)

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        self.link = await WorkerLink.over(ours, lambda: self.peer.close())
        self.peer = WorkerPeer(self.server, self.main_app, self.coordinator, self.link)  # type: ignore[arg-type]
        self.worker_link = await WorkerLink.over(theirs, lambda: None)
        settings = WorkerSettings(
            model_name="m",
            aliases=(),
            capabilities=Capabilities(),
            max_body_size=2**20,
            max_json_size=2**20,
            request_timeout=None,
            strict_params=False,
            access=Access(),
            terminal_stages=self.coordinator.terminal_stages,
        )
        app, _ = worker_app(settings, self.worker_link)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker")

    async def ask(self, prompt: str, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"prompt": prompt, **fields})

    @property
    def held(self) -> tuple[int, int, int, dict[Any, Any]]:
        """What the whole server thinks is under way."""
        admission, running = self.server.admission, self.server.running
        return admission.running, admission.waiting, admission._body_bytes, dict(running._by_name)

    @property
    def page(self) -> str:
        """The metrics."""
        return self.server.metrics.render().decode()


NOTHING: tuple[int, int, int, dict[Any, Any]] = (0, 0, 0, {})


@asynccontextmanager
async def both() -> AsyncIterator[Both]:
    made = Both()
    await made.start()
    try:
        async with made.http:
            yield made
    finally:
        made.worker_link.close()
        await until(lambda: made.held == NOTHING and not made.coordinator.running)


@pytest.mark.parametrize("path", OWN)
async def test_what_costs_time_for_each_token_is_served_by_the_worker(path: str) -> None:
    async with both() as server:
        answer = await server.http.post(path, json={})
        assert answer.status_code in (400, 415)
        assert server.forwarded == []
        assert (await server.http.get(path)).status_code == 405
        assert server.forwarded == [path]


async def test_answers_are_those_of_one_process() -> None:
    async with both() as server:
        assert (await server.ask("x")).json()["choices"][0]["text"] == "012"
        streamed = await server.ask("x", stream=True)
        events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        assert "".join(event["choices"][0]["text"] for event in events) == "012"
        assert streamed.headers["x-request-id"]
        failed = await server.ask("fail")
        assert failed.status_code == 503
        assert failed.json()["error"]["message"] == "stage 'count': out of numbers"
        twice = await server.ask("twice")
        assert (twice.status_code, twice.json()["error"]["code"]) == (409, "duplicate_request_id")
        assert (await server.ask("abort")).json()["choices"][0]["finish_reason"] == "abort"
        assert server.forwarded == []
        await until(lambda: 'requests_total{path="/v1/completions",status="200"} 3.0' in server.page)
        assert 'request_success_total{finished_reason="error"} 2.0' in server.page
        assert "time_to_first_token_seconds_count 1.0" in server.page


async def test_a_client_that_leaves_the_queue_leaves_its_permit() -> None:
    async with both() as server:
        running = [asyncio.create_task(server.ask("on and on")) for _ in range(2)]
        await until(lambda: len(server.coordinator.running) == 2)
        waiting = asyncio.create_task(server.ask("x"))
        await until(lambda: server.held[1] == 1)
        assert (await server.ask("x")).status_code == 429
        waiting.cancel()
        await until(lambda: server.held[:2] == (2, 0))
        for task in running:
            task.cancel()
        await until(lambda: server.held == NOTHING)
        assert (await server.ask("x")).status_code == 200


async def test_large_bodies_count_in_the_main_process() -> None:
    async with both() as server:
        running = asyncio.create_task(server.ask(LARGE))
        await until(lambda: len(server.coordinator.running) == 1)
        assert server.held[2] > 100_000
        running.cancel()
        await until(lambda: server.held == NOTHING)


async def test_all_that_a_worker_held_is_given_back_when_it_dies() -> None:
    async with both() as server:
        tasks = [asyncio.create_task(server.ask(LARGE)) for _ in range(3)]
        await until(lambda: server.held[:2] == (2, 1) and len(server.coordinator.running) == 2)
        server.worker_link.close()
        await until(lambda: server.held == NOTHING and not server.coordinator.running)
        assert "requests_in_flight 0.0" in server.page
        assert 'request_success_total{finished_reason="abort"} 2.0' in server.page
        assert all(each.ended is not None for each in server.server.history.since(0.0))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
