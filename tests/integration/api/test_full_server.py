"""What every route says while as many requests run and wait as may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from scripted_pipeline import ScriptedPipeline
from waiting import PATIENCE

from sglang_omni.client import Client
from sglang_omni.serve import create_app
from sglang_omni.serve.front.admission import AdmissionLimits

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
ASKED = {
    "/v1/chat/completions": {"json": HELLO},
    "/v1/completions": {"json": {"prompt": "Hi"}},
    "/v1/audio/speech": {"json": {"input": "Hi"}},
    "/v1/audio/transcriptions": {"files": {"file": ("a.wav", b"RIFF")}},
    "/v1/audio/translations": {"files": {"file": ("a.wav", b"RIFF")}},
    "/generate": {"json": {"text": "Hi"}},
}


@asynccontextmanager
async def full(queue: int) -> AsyncIterator[tuple[ScriptedPipeline, httpx.AsyncClient]]:
    """A server whose only place is taken."""
    pipeline = ScriptedPipeline()
    pipeline.hangs_after = 0
    app = create_app(Client(pipeline), limits=AdmissionLimits(1, queue, 0.1))
    transport = httpx.ASGITransport(app)
    async with (
        asyncio.timeout(PATIENCE),
        httpx.AsyncClient(transport=transport, base_url="http://a") as client,
    ):
        hanging = asyncio.ensure_future(client.post("/v1/chat/completions", json=HELLO))
        while not pipeline.running:
            await asyncio.sleep(0.001)
        yield pipeline, client
        hanging.cancel()


@pytest.mark.parametrize("queue", [0, 1])
@pytest.mark.parametrize("path", ASKED)
async def test_requests_are_refused_alike(path: str, queue: int) -> None:
    # Without a queue before its body is read, else when it is over its time, in the midst of reading it.
    async with full(queue) as (pipeline, client):
        answer = await client.post(path, **ASKED[path])
        assert answer.status_code == 429, answer.text
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.headers["x-request-id"]
        assert len(pipeline.requests) == 1


async def test_health_says_busy_and_how_many_it_takes() -> None:
    async with full(0) as (pipeline, client):
        answer = await client.get("/health")
        assert answer.status_code == 200
        limits = {"max_concurrent_requests": 1, "queue_size": 0, "queue_timeout": 0.1}
        assert answer.json() == {"status": "busy", "running": True, "limits": limits}
        await client.post("/v1/completions", json={"prompt": "Hi"})
        text = (await client.get("/metrics")).text
        assert "sglang_omni_requests_running 1.0\n" in text
        assert "sglang_omni_requests_waiting 0.0\n" in text
        assert 'sglang_omni_requests_refused_total{reason="queue_full"} 1.0\n' in text
        # An operator can end what takes the place.
        [request_id] = pipeline.running
        answer = await client.post("/abort_request", json={"request_id": request_id})
        assert answer.json()["success"]
        while (await client.get("/health")).json()["status"] != "healthy":
            await asyncio.sleep(0.001)
