"""How long a request may take, whatever it asks for itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from waiting import until

from sglang_omni.client import Client
from sglang_omni.proto import OmniRequest, StreamMessage
from sglang_omni.serve import create_app

SPOKEN = {"input": "Hello.", "voice": "default"}
WRITTEN = {"messages": [{"role": "user", "content": "Hello."}]}


class Silent:
    """A pipeline that begins to stream, and never answers."""

    def __init__(self) -> None:
        self.aborted: list[str] = []
        self.asked: list[OmniRequest] = []

    async def submit(self, request_id: str, request: OmniRequest) -> Any:
        self.asked.append(request)
        await self._never(request_id)

    async def stream(self, request_id: str, request: OmniRequest) -> AsyncIterator[Any]:
        self.asked.append(request)
        if request.metadata["task"] == "chat":
            yield StreamMessage(request_id, "thinker", {"modality": "text", "text": "Hel"})
        await self._never(request_id)

    async def _never(self, request_id: str) -> None:
        """A coordinator stops a request everywhere when its caller leaves."""
        try:
            await asyncio.Event().wait()
        finally:
            self.aborted.append(request_id)


async def post(pipeline: Silent, path: str, limit: float | None, **request: Any) -> httpx.Response:
    app = create_app(Client(pipeline), request_timeout=limit)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        async with asyncio.timeout(60):
            return await http.post(path, **request)


@pytest.mark.parametrize("own", [{}, {"timeout": 3600}], ids=["none of its own", "a longer one"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", WRITTEN),
        ("/v1/completions", {"prompt": "Hello."}),
        ("/v1/completions", {"prompt": ["Hello.", "Hi."]}),
        ("/v1/audio/speech", SPOKEN),
        ("/v1/audio/speech", SPOKEN | {"stream": True}),
        ("/generate", {"text": "Hello."}),
    ],
)
async def test_a_request_ends_with_the_servers_limit(path: str, body: dict, own: dict) -> None:
    pipeline = Silent()
    answer = await post(pipeline, path, 0.1, json=body | own)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
    assert len(pipeline.aborted) == len(pipeline.asked) > 0


async def test_a_transcription_ends_with_the_servers_limit() -> None:
    pipeline = Silent()
    answer = await post(
        pipeline, "/v1/audio/transcriptions", 0.1, files={"file": ("a.wav", b"RIFF")}, data={"timeout": "99"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")


async def test_a_stream_under_way_ends_with_the_error_as_its_last_event() -> None:
    answer = await post(Silent(), "/v1/chat/completions", 0.1, json=WRITTEN | {"stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert events[0]["choices"][0]["delta"]["content"] == "Hel"
    assert events[-1]["error"]["code"] == "request_timeout"


async def test_its_own_lower_limit_counts() -> None:
    answer = await post(Silent(), "/v1/chat/completions", 600.0, json=WRITTEN | {"timeout": 0.1})
    assert answer.status_code == 504
    assert "0.1 s" in answer.json()["error"]["message"]


async def test_without_a_limit_its_own_counts_whatever_it_is() -> None:
    pipeline = Silent()
    body = WRITTEN | {"timeout": 86_400}
    asking = asyncio.create_task(post(pipeline, "/v1/chat/completions", None, json=body))
    await until(lambda: bool(pipeline.asked))
    assert pipeline.asked[0].metadata["timeout"] == 86_400
    asking.cancel()
    await until(lambda: bool(pipeline.aborted))
