"""A server in this process whose three stages keep each request until a test lets it go on."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import uvicorn

from sglang_omni.client import Client
from sglang_omni.config import PipelineConfig, StageConfig, plan_pipeline
from sglang_omni.config.draw.graph import pipeline_graph
from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.serve import create_app
from sglang_omni.serve.state import Capabilities

STAGES = ("read", "think", "answer")
_NUMBERS = itertools.count()


class HeldStage:
    """Hands on what it got, once ``release`` is called. It tells how many requests it has and has waiting."""

    def __init__(self, name: str) -> None:
        self.inbox = Inbox()
        self.outbox = Outbox()
        self.name = name
        self.works = True
        self._held: list[IncomingMessage] = []
        Held.stages[name] = self

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            self._held.append(message)

    def stats(self) -> dict[str, float]:
        count = len(self._held)
        reported = {
            "num_running_reqs": count if self.works else 0,
            "num_queue_reqs": 0 if self.works else count,
        }
        return reported | {"max_running_reqs": 4, "cache_hits_total": 3, "cache_misses_total": 1}

    def release(self) -> None:
        for message in self._held:
            data = message.data
            if self.name == STAGES[-1]:
                data = {"modality": "text", "text": "Done.", "finish_reason": "stop"}
            self.outbox.put(OutgoingMessage(message.request_id, "result", data))
        self._held = []

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        self._held = [message for message in self._held if message.request_id != request_id]


class Held:
    """The server: its address, and its stages by name."""

    stages: ClassVar[dict[str, HeldStage]] = {}

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def release_all(self) -> None:
        for stage in self.stages.values():
            stage.release()


@contextmanager
def held_server() -> Iterator[Held]:
    """Serves the three stages on a port of its own."""
    follow = [*STAGES[1:], None]
    stages = [
        StageConfig(
            name=name,
            process=name if name == "think" else "io",
            factory=f"{__name__}.HeldStage",
            factory_args={"name": name},
            **({"next": after} if after else {"terminal": True}),
        )
        for name, after in zip(STAGES, follow, strict=True)
    ]
    config = PipelineConfig(model_path="m", name=f"held-{next(_NUMBERS)}", stages=stages)
    graph = pipeline_graph(plan_pipeline(config))
    started, ended = threading.Event(), threading.Event()

    async def serve(listener: socket.socket) -> None:
        coordinator, running = compile_pipeline(config)
        abilities = Capabilities(
            tasks=frozenset({"chat"}),
            input_modalities=frozenset({"text"}),
            output_modalities=frozenset({"text"}),
        )
        app = create_app(Client(coordinator), model_name="held", capabilities=abilities, graph=graph)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        async with PipelineRunner(coordinator, running):
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            started.set()
            await asyncio.to_thread(ended.wait)
            server.should_exit = True
            await serving

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=lambda: asyncio.run(serve(listener)))
        thread.start()
        started.wait()
        try:
            yield Held(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            ended.set()
            thread.join()
