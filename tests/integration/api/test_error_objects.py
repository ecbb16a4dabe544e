"""OpenAI's error objects, as its own client reads them: the class, the type, and the code to test for."""

from __future__ import annotations

import json

import openai
import pytest

from sglang_omni.client import ClientError, GenerateRequest, Message, RequestError, SyncClient
from sglang_omni.proto import Unavailable

HELLO = [{"role": "user", "content": "Hi"}]
TOO_LONG = RequestError("too long", param="messages", code="context_length_exceeded")


def test_a_prompt_that_is_too_long(api, pipeline):
    pipeline.error = TOO_LONG
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model="scripted", messages=HELLO)
    assert caught.value.code == "context_length_exceeded"
    assert (caught.value.type, caught.value.param) == ("invalid_request_error", "messages")


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_speech_that_ends_before_its_first_frame(api, pipeline, stream_format):
    pipeline.samples = pipeline.samples[:0]
    with pytest.raises(openai.InternalServerError, match="try another seed, temperature or voice") as caught:
        api.audio.speech.create(
            model="scripted", voice="default", input="Hm.", response_format="pcm", stream_format=stream_format
        )
    assert caught.value.status_code == 500


def test_a_model_that_is_not_there(api):
    with pytest.raises(openai.NotFoundError) as caught:
        api.chat.completions.create(model="gpt-9", messages=HELLO)
    assert (caught.value.code, caught.value.type) == ("model_not_found", "invalid_request_error")


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ({"no_such_field": 1}, "unknown_parameter"),
        ({"min_tokens": 1}, "unsupported_parameter"),
        ({"store": True}, "unsupported_value"),
        ({"temperature": "hot"}, "invalid_type"),
        ({"temperature": 9}, "invalid_value"),
        ({"messages": None}, "invalid_type"),
        ({"modalities": ["audio"], "audio": {"voice": "nobody"}}, "unsupported_value"),
        ({"stage_params": {"thinkr": {}}}, "unknown_parameter"),
    ],
)
def test_a_wrong_field(api, extra, code):
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model="scripted", messages=HELLO, extra_body=extra)
    assert (caught.value.code, caught.value.type) == (code, "invalid_request_error")


def test_a_missing_field_and_a_body_that_is_no_json(http):
    error = http.post("/v1/chat/completions", json={}).json()["error"]
    assert (error["code"], error["message"]) == (
        "missing_required_parameter",
        "messages: is required",
    )
    body = http.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
    assert body.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/v1/nowhere", 404, "unknown_url"), ("GET", "/generate", 405, "method_not_allowed")],
)
def test_a_route_that_is_not_there(http, method, path, status, code):
    answer = http.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (status, "invalid_request_error", code)


def test_a_body_over_the_limit(http):
    for body in (b"x" * (2 << 20), iter([b"x" * (1 << 20)] * 2)):
        answer = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (RuntimeError("stage 'thinker': no"), 500, None),
        (Unavailable("draining"), 503, "service_unavailable"),
        (TimeoutError("late"), 504, "request_timeout"),
    ],
)
def test_what_is_not_the_requests_fault(api, pipeline, fault, status, code):
    pipeline.error = fault
    with pytest.raises(openai.InternalServerError) as caught:
        api.chat.completions.create(model="scripted", messages=HELLO)
    assert (caught.value.status_code, caught.value.type, caught.value.code) == (status, "server_error", code)


@pytest.mark.parametrize("stream", [False, True])
def test_what_another_server_may_do(http, pipeline, stream):
    pipeline.error = Unavailable("stage 'thinker': its process died")
    answer = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "service_unavailable"


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, RequestError, TimeoutError, Unavailable])
def test_what_a_failure_quotes_is_cut(http, pipeline, caplog, kind):
    """A stage's words may hold what a caller has sent."""
    quoted = "quoted " * 200_000
    pipeline.error = kind(quoted, code="invalid_value") if kind is RequestError else kind(quoted)
    answer = http.post("/v1/chat/completions", json={"messages": HELLO})
    assert answer.status_code >= 400
    assert len(answer.content) < 2300
    assert "quoted quoted" in answer.json()["error"]["message"]
    # A failure that was not foreseen has its traceback.
    assert sum(len(record.getMessage()) for record in caplog.records) < 10_000


def test_an_id_in_use(api, pipeline):
    pipeline.error = ValueError("request 'x' already exists")
    with pytest.raises(openai.ConflictError) as caught:
        api.chat.completions.create(model="scripted", messages=HELLO)
    assert caught.value.code == "duplicate_request_id"


def test_an_error_in_the_middle_of_a_stream(api, pipeline):
    pipeline.error, pipeline.error_after = TOO_LONG, 1
    stream = api.chat.completions.create(model="scripted", messages=HELLO, stream=True)
    assert next(stream).choices[0].delta.content == "Hel"
    with pytest.raises(openai.APIError) as caught:
        next(stream)
    assert (caught.value.code, caught.value.type) == ("context_length_exceeded", "invalid_request_error")


def test_the_clients_errors_have_the_code_too(pipeline, base_url):
    request = GenerateRequest(messages=[Message("user", "Hi")])
    pipeline.error = TOO_LONG
    with SyncClient(base_url) as client:
        with pytest.raises(RequestError) as whole:
            client.completion(request)
        pipeline.error_after = 1
        with pytest.raises(RequestError) as streamed:
            list(client.completion_stream(request))
        for caught in (whole, streamed):
            error = caught.value
            assert (error.code, error.status) == ("context_length_exceeded", 400)
        pipeline.error = Unavailable("draining")
        with pytest.raises(ClientError) as unavailable:
            list(client.completion_stream(request))
        assert unavailable.value.status == 503
        pipeline.error = TimeoutError("late")
        with pytest.raises(TimeoutError, match="late"):
            list(client.completion_stream(request))


def test_the_error_of_a_stream_of_speech(http, pipeline):
    pipeline.error, pipeline.error_after = TOO_LONG, 1
    body = {"input": "Hello.", "stream_format": "sse", "response_format": "pcm"}
    answer = http.post("/v1/audio/speech", json=body)
    last = [json.loads(line[6:]) for line in answer.text.splitlines() if line][-1]
    assert last["error"]["code"] == "context_length_exceeded"
