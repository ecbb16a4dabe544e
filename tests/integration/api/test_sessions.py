"""A session key over HTTP: what names it, and that its requests meet one worker of a stage."""

from __future__ import annotations

import itertools

import httpx
import pytest

from sglang_omni.client import Client, GenerateRequest, SyncClient
from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline
from sglang_omni.serve import create_app

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
HEADER = {"x-session-id": "from header"}
ROUTES = {
    "/v1/chat/completions": {"json": CHAT},
    "/v1/completions": {"json": {"prompt": ["Hi", "Ho"]}},
    "/v1/audio/speech": {"json": {"input": "Hi", "response_format": "wav"}},
    "/v1/audio/transcriptions": {"files": {"file": ("a.wav", b"RIFF")}},
    "/generate": {"json": {"text": "Hi"}},
}


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_takes_the_header(http, pipeline, path):
    assert http.post(path, **ROUTES[path]).is_success
    assert {request.metadata.get("session_id") for _, request in pipeline.requests} == {None}
    pipeline.reset()
    assert http.post(path, headers=HEADER, **ROUTES[path]).is_success
    assert {request.metadata.get("session_id") for _, request in pipeline.requests} == {"from header"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/audio/speech", "/generate"])
def test_streams_do_too(http, pipeline, path):
    body = ROUTES[path]["json"] | {"stream": True}
    body.pop("response_format", None)
    if path == "/v1/completions":
        body["prompt"] = "Hi"
    assert http.post(path, headers=HEADER, json=body).is_success
    assert pipeline.last.metadata["session_id"] == "from header"


@pytest.mark.parametrize(
    ("header", "body", "session"),
    [
        (None, {"user": "ann"}, "ann"),
        (None, {"user": "ann", "prompt_cache_key": "chat 7"}, "chat 7"),
        (None, {"user": "ann", "prompt_cache_key": ""}, "ann"),
        ("s", {"user": "ann", "prompt_cache_key": "chat 7"}, "s"),
        ("", {"user": "ann"}, None),
        ("Zoë".encode(), {"user": "ann"}, "Zoë"),
    ],
)
def test_the_header_comes_before_the_cache_key_and_that_before_the_user(
    http, pipeline, header, body, session
):
    headers = {} if header is None else {"x-session-id": header}
    assert http.post("/v1/chat/completions", headers=headers, json=CHAT | body).is_success
    assert pipeline.last.metadata.get("session_id") == session


@pytest.mark.parametrize("field", ["session_id", "_session_id"])
def test_it_is_no_field_of_a_body(http, field):
    answer = http.post("/v1/completions", json={"prompt": "Hi", field: "mine"})
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


@pytest.mark.parametrize("session", ["s", "Zoë", None])
def test_the_client_names_it(base_url, pipeline, session):
    with SyncClient(base_url) as client:
        client.completion(GenerateRequest(prompt="Hi", session_id=session))
        client.completion(GenerateRequest(prompt="Hi", metadata={"session_id": session} if session else {}))
        list(client.completion_stream(GenerateRequest(prompt="Hi", session_id=session)))
        client.speech(GenerateRequest(prompt="Hi", session_id=session))
        client.transcribe(b"RIFF", session_id=session)
    assert [request.metadata.get("session_id") for _, request in pipeline.requests] == [session] * 5


_workers = itertools.count()


def numbered():
    worker = next(_workers)
    return lambda payload: {"modality": "text", "text": str(worker), "finish_reason": "stop"}


async def test_requests_of_a_session_meet_one_worker_of_a_stage():
    config = PipelineConfig(
        model_path="m",
        stages=[
            StageConfig(name="a", process="p", factory=f"{__name__}.numbered", num_workers=3, terminal=True)
        ],
    )
    coordinator, stages = compile_pipeline(config)
    app = create_app(Client(coordinator))
    async with (
        PipelineRunner(coordinator, stages),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://served") as http,
    ):

        async def worker(**session: str) -> str:
            answer = await http.post("/v1/completions", json={"prompt": "Hi"}, headers=session)
            return answer.json()["choices"][0]["text"]

        assert len({await worker() for _ in range(3)}) == 3
        met = {}
        for _ in range(4):
            for name in ("ann", "bob"):
                met.setdefault(name, set()).add(await worker(**{"x-session-id": name}))
            await worker()
        assert [len(workers) for workers in met.values()] == [1, 1]
