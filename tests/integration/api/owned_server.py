"""A real pipeline behind the real API on a port of its own; its one stage holds requests until it is told."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from queue import Queue
from typing import Any

import httpx
import uvicorn
from waiting import PATIENCE

from sglang_omni.client import Client
from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.serve import create_app

_NUMBERS = itertools.count()


class Holding:
    """Says its prompt, and where that begins with ``hold`` only once it is released. Says a word at once."""

    last: Holding

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage | None] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()
        self.held: dict[str, str] = {}
        self.sessions: list[str | None] = []
        self.lock = threading.Lock()
        Holding.last = self

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            prompt = message.data.request.inputs.get("prompt", "none")
            self.sessions.append(message.data.request.metadata.get("session_id"))
            self.outbox.put(
                OutgoingMessage(message.request_id, "stream", {"modality": "text", "text": prompt[:1]})
            )
            with self.lock:
                self.held[message.request_id] = prompt
            if not prompt.startswith("hold"):
                self.release(message.request_id)

    def release(self, wire_id: str) -> None:
        with self.lock:
            prompt = self.held.pop(wire_id)
        whole = {"modality": "text", "text": prompt, "finish_reason": "stop"}
        self.outbox.put(OutgoingMessage(wire_id, "result", whole))

    def release_all(self) -> None:
        for wire_id in list(self.held):
            self.release(wire_id)

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, wire_id: str) -> None:
        with self.lock:
            self.held.pop(wire_id, None)


@dataclass
class Served:
    base_url: str
    coordinator: Coordinator
    stage: Holding
    http: httpx.AsyncClient

    async def ask(self, prompt: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"prompt": prompt} | fields, headers=headers)

    def asking(self, prompt: str, headers: dict[str, str] | None = None, **fields: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.ask(prompt, headers, **fields))

    async def abort(self, request_id: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
        answer = await self.http.post("/abort_request", json={"request_id": request_id}, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def holds(self, count: int) -> list[str]:
        """The wire ids of the requests that are held, once there are so many."""
        async with asyncio.timeout(PATIENCE):
            while len(self.stage.held) != count:
                await asyncio.sleep(0.01)
        return list(self.stage.held)


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[Served]:
    """Serves with these options of ``create_app``."""
    stage = StageConfig(name="say", process="p", factory=f"{__name__}.Holding", terminal=True)
    coordinator, stages = compile_pipeline(
        PipelineConfig(model_path="m", name=f"holding-{next(_NUMBERS)}", stages=[stage])
    )
    app = create_app(Client(coordinator), **options)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            PipelineRunner(coordinator, stages),
            httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=PATIENCE) as http,
        ):
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            yield Served(base_url, coordinator, Holding.last, http)
            server.should_exit = True
            await serving
