"""A server with realtime sessions before a scripted pipeline, and the openai package's client of one."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import openai
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from scripted_pipeline import CAPABILITIES, RATE, ScriptedPipeline
from waiting import PATIENCE

from sglang_omni.client import Client, RequestError
from sglang_omni.proto import OmniRequest, StreamMessage
from sglang_omni.serve import create_app
from sglang_omni.serve.launch.web_server import WebServer
from sglang_omni.serve.state import AppState
from sglang_omni.supervision.ports import bind

CLIP = np.linspace(-20_000, 20_000, RATE // 2).astype("<i2").tobytes()
NO_TURNS = {"turn_detection": None}


class Pipeline(ScriptedPipeline):
    """One that ends its answers, calls tools, and takes so many messages."""

    def reset(self) -> None:
        super().reset()
        self.finish_reason = "stop"
        self.calls: list[dict[str, Any]] = []
        self.most_messages = 1000

    async def stream(self, request_id: str, request: OmniRequest) -> AsyncIterator[Any]:
        messages = request.inputs.get("messages", ())
        if len(messages) > self.most_messages:
            self.requests.append((request_id, request))
            raise RequestError("too long", code="context_length_exceeded")
        is_first = True
        async for message in super().stream(request_id, request):
            if is_first and self.calls:
                for call in self.calls:
                    half = len(call["arguments"]) // 2
                    first = {**call, "arguments": call["arguments"][:half]}
                    rest = {"index": call["index"], "arguments": call["arguments"][half:]}
                    for piece in (first, rest):
                        yield StreamMessage(
                            request_id, "thinker", {"modality": "text", "tool_calls": [piece]}
                        )
            is_first = False
            yield message

    def _result(self, request: OmniRequest) -> Any:
        result = super()._result(request)
        text = result.get("decode", result)
        text.update({"finish_reason": self.finish_reason, "tool_calls": self.calls})
        return result


class Talk:
    """A client's side of a session."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []

    async def until(self, kind: str) -> dict[str, Any]:
        """The next event of this type. An error that is not awaited fails the test."""
        async with asyncio.timeout(PATIENCE):
            while True:
                # The client's own models leave out what they do not know.
                event = json.loads(await self.connection.recv_bytes())
                self.events.append(event)
                if event["type"] == kind:
                    return event
                assert event["type"] != "error", event

    async def send(self, kind: str, **fields: Any) -> None:
        await self.connection.send({"type": kind, **fields})  # type: ignore[misc, arg-type]

    async def update(self, **fields: Any) -> dict[str, Any]:
        await self.send("session.update", session={"type": "realtime", **fields})
        return (await self.until("session.updated"))["session"]

    async def write(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        await self.send(
            "conversation.item.create", item={"type": "message", "role": "user", "content": content}
        )
        await self.until("conversation.item.done")

    async def speak(self, clip: bytes = CLIP) -> str:
        """Commit a clip; the id of its item."""
        for start in range(0, len(clip), 5001):
            audio = base64.b64encode(clip[start : start + 5001]).decode()
            await self.send("input_audio_buffer.append", audio=audio)
        await self.send("input_audio_buffer.commit")
        return (await self.until("input_audio_buffer.committed"))["item_id"]

    async def respond(self, **fields: Any) -> dict[str, Any]:
        await self.send("response.create", **({"response": fields} if fields else {}))
        return (await self.until("response.done"))["response"]

    async def refusal(self, kind: str, **fields: Any) -> dict[str, Any]:
        await self.send(kind, event_id="mine", **fields)
        error = (await self.until("error"))["error"]
        assert error["event_id"] == "mine"
        return error

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


class Served:
    def __init__(self, pipeline: Pipeline, state: AppState, port: int) -> None:
        self.pipeline, self.state, self.port = pipeline, state, port

    @asynccontextmanager
    async def talk(self, **query: str) -> AsyncIterator[Talk]:
        """A session that detects no turns."""
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none") as client:
            connecting = client.realtime.connect(
                extra_query=query, websocket_connection_options={"proxy": None}
            )
            async with connecting as connection:
                talk = Talk(connection)
                created = await talk.until("session.created")
                if created["session"]["audio"]["input"]["turn_detection"] is not None:
                    kind = created["session"]["type"]
                    update = {"type": kind, "audio": {"input": NO_TURNS}}
                    await talk.send("session.update", session=update)
                    await talk.until("session.updated")
                talk.events.clear()
                yield talk

    async def messages(self) -> list[dict[str, Any]]:
        """Those of the last request."""
        return self.pipeline.last.inputs["messages"]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                await asyncio.sleep(0.01)

    async def is_free(self) -> None:
        """Wait until nothing is left of any session."""
        await self.until(lambda: not self.state.realtime.count and not self.state.admission.running)
        assert not self.pipeline.running


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[Served]:
    pipeline = Pipeline()
    app = create_app(Client(pipeline), **{"capabilities": CAPABILITIES, **options})
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        server = WebServer(app)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        yield Served(pipeline, app.state.server, listener.getsockname()[1])
        server.should_exit = True
        await serving
