"""Bad requests, failing stages, callers that leave: what each is answered with, and what it leaves behind."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sglang_omni.preprocessing.messages import parse_messages
from sglang_omni.proto import RequestError, Unavailable

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def part(**fields):
    return {"messages": [{"role": "user", "content": [fields]}]}


def post(http, body, path="/v1/chat/completions"):
    # httpx refuses to write NaN, and callers do not.
    answer = http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("invalid_request_error" if answer.status_code < 500 else "server_error")
    assert error["code"] is None or error["code"].islower()
    return answer.status_code, error["param"], error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"messages": [{"role": "user", "content": "x", "audio": {"id": "a"}}]}, "messages[0].audio"),
        (part(type="input_audio", input_audio={"data": ""}), "messages[0].content[0].input_audio.data"),
        ({"images": ["data:,"]}, "images[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stream_options": {"usage": True}}, "stream_options.usage"),
        ({"modalities": ["audio"], "audio": {"format": "ogg"}}, "audio.format"),
        ({"modalities": ["audio"], "audio": {"format": "ogg"}, "stream": True}, "audio.format"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": NAMED | {"function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [TOOL], "functions": [{"name": "f"}]}, "functions"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "tool", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "reasoning": "y"}]}, "messages[0].reasoning"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
    ],
)
def test_bad_chat_field_is_named(http, pipeline, fields, param):
    status, named, message = post(http, HELLO | fields)
    assert (status, named) == (400, param)
    assert param.split("[")[0].split(".")[0] in message
    assert pipeline.requests == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": ["a", ""]}, "prompt[1]"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "n": 129}, "n"),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 65}, "n"),
        ("/v1/completions", {"prompt": "a", "n": 2, "best_of": 1}, "best_of"),
        ("/v1/completions", {"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "echo": True, "logprobs": 1, "stream": True}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"the": 1}}, "logit_bias"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias[5]"),
        ("/v1/completions", {"prompt": "a", "regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
        ("/v1/completions", {"prompt": "a", "json_schema": "{"}, "json_schema"),
        ("/v1/completions", {"prompt": "a", "response_format": {"type": "xml"}}, "response_format"),
        (
            "/v1/completions",
            {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ("/v1/completions", {"prompt": [[1]], "echo": True}, None),
        ("/v1/audio/speech", {"input": "a", "voice": "nobody"}, "voice"),
        ("/v1/audio/speech", {"input": "a", "response_format": "ogg", "stream": True}, "response_format"),
        ("/generate", {}, "text"),
        ("/generate", {"text": "a", "input_ids": [1]}, "text"),
        ("/generate", {"text": "a", "sampling_params": {"top_p": 2}}, "sampling_params.top_p"),
        ("/generate", {"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ("/generate", {"text": ["a", "b"], "sampling_params": [{}, {"n": 2}]}, "sampling_params[1].n"),
        ("/generate", {"text": ["a"], "sampling_params": [{"top_p": 2}]}, "sampling_params[0].top_p"),
        ("/generate", {"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ("/generate", {"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ("/generate", {"text": ["a", "b"], "logprob_start_len": [0]}, "logprob_start_len"),
        ("/generate", {"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}, "sampling_params.ebnf"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/abort_request", {}, "request_id"),
    ],
)
def test_bad_field_of_other_routes_is_named(http, path, body, param):
    assert post(http, body, path)[:2] == (400, param)


def test_accepts_fields_at_their_harmless_defaults(http):
    harmless = {
        "n": 1,
        "logprobs": False,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "logit_bias": {},
        "top_logprobs": None,
        "store": False,
        "user": "me",
        "parallel_tool_calls": True,
    }
    answer = http.post("/v1/chat/completions", json=HELLO | harmless)
    assert answer.status_code == 200, answer.text


def test_unknown_model_is_404(http, pipeline):
    status, param, message = post(http, HELLO | {"model": "gpt-9"})
    assert (status, param) == (404, "model")
    assert "'scripted'" in message
    assert post(http, {"model": "gpt-9", "input": "x"}, "/v1/audio/speech")[0] == 404
    assert pipeline.requests == []


def test_task_the_model_does_not_do(http):
    answer = http.post("/v1/audio/translations", files={"file": b"RIFF"})
    assert answer.status_code == 400
    assert "translation" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("files", "data", "param"),
    [
        ({}, {"model": "scripted"}, "file"),
        ({"file": b"RIFF"}, {"temperature": "7"}, "temperature"),
        ({"file": b"RIFF"}, {"languag": "en"}, "languag"),
        ({"file": b"RIFF", "model": b"x"}, {}, "model"),
    ],
)
def test_bad_form(http, files, data, param):
    answer = http.post("/v1/audio/transcriptions", files=files or {"x": b"1"}, data=data)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] in (param, "x")


def test_body_over_the_limit(http, pipeline):
    answer = http.post("/v1/chat/completions", content=b"x" * (3 << 20))
    assert answer.status_code == 413
    assert "1048576" in answer.json()["error"]["message"]

    def untold():
        for _ in range(48):
            yield b"x" * (1 << 16)

    answer = http.post("/v1/chat/completions", content=untold(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    answer = http.post("/v1/audio/transcriptions", files={"file": b"x" * (2 << 20)})
    assert answer.status_code == 413
    assert http.post("/v1/chat/completions", json=HELLO).status_code == 200
    assert len(pipeline.requests) == 1


def test_stages_refusal_keeps_its_field_and_status(http, pipeline):
    pipeline.error = RequestError("prompt of 9000 tokens, context of 2048", param="messages", status=400)
    assert post(http, HELLO) == (400, "messages", "prompt of 9000 tokens, context of 2048")
    # The same before the first event of a stream: a status, not a stream with an error in it.
    assert post(http, HELLO | {"stream": True})[0] == 400


def test_failing_stage_is_500_and_the_next_request_works(http, pipeline):
    pipeline.error = RuntimeError("stage 'thinker': ValueError: no")
    failed = http.post("/v1/chat/completions", json=HELLO | {"request_id": "r7"})
    assert failed.headers["x-request-id"] == "r7"
    assert post(http, HELLO) == (500, None, "stage 'thinker': ValueError: no")
    pipeline.error = None
    assert http.post("/v1/chat/completions", json=HELLO).status_code == 200


def test_media_are_named_as_they_were_sent(http, pipeline):
    """Pipelines get ``audios`` among the last message's parts; what is wrong with one is found there."""
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    reported = {"role": "user", "content": [{"type": "text", "text": "Both?"}, sound]}
    body = {"messages": [{"role": "user", "content": "Hi"}, reported], "audios": ["data:,a", "data:,b"]}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    _, media = parse_messages(pipeline.last.inputs["messages"], ["audio"])
    assert [(part.source, part.param) for part in media] == [
        ("data:,a", "audios[0]"),
        ("data:,b", "audios[1]"),
        ("UklGRg==", "messages[1].content[1].input_audio.data"),
    ]
    _, media = parse_messages(body["messages"], ["audio"])
    assert [part.param for part in media] == ["messages[1].content[1].input_audio.data"]
    status, param, _ = post(http, body | {"messages": [{**reported, "content": [{**sound, "param": "x"}]}]})
    assert (status, param) == (400, "messages[0].content[0].param")


@pytest.mark.parametrize(("kind", "code"), [(RuntimeError, None), (Unavailable, "service_unavailable")])
def test_failure_in_mid_stream_is_its_last_event(http, pipeline, kind, code):
    pipeline.error, pipeline.error_after = kind("stage 'thinker': gone"), 2
    answer = http.post("/v1/chat/completions", json=HELLO | {"stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert [e["choices"][0]["delta"].get("content") for e in events[:2]] == ["Hel", "lo"]
    assert events[2]["error"]["message"] == "stage 'thinker': gone"
    assert (events[2]["error"]["type"], events[2]["error"]["code"]) == ("server_error", code)
    assert len(events) == 3


def test_request_past_its_timeout_is_504_and_aborted(http, pipeline):
    pipeline.hangs_after = 0
    status, _, message = post(http, HELLO | {"timeout": 0.05, "request_id": "slow"})
    assert status == 504
    assert "0.05 s" in message
    assert pipeline.was_aborted("slow")


def test_id_in_use_is_409(http, pipeline, base_url):
    pipeline.hangs_after = 0
    with leaving(base_url, HELLO | {"request_id": "twice"}):
        wait_for(lambda: "twice" in pipeline.running)
        assert post(http, HELLO | {"request_id": "twice"})[:2] == (409, "request_id")


@pytest.mark.parametrize("stream", [False, True])
def test_caller_that_leaves_aborts_its_request(pipeline, base_url, stream):
    pipeline.hangs_after = 1 if stream else 0
    with leaving(base_url, HELLO | {"stream": stream, "request_id": "left"}) as connection:
        wait_for(lambda: "left" in pipeline.running)
        if stream:
            receive_until(connection, b"Hel")
    assert pipeline.was_aborted("left")
    wait_for(lambda: not pipeline.running)


def test_abort_request_ends_the_answer(http, pipeline, base_url):
    pipeline.hangs_after = 1
    with leaving(base_url, HELLO | {"stream": True, "request_id": "x1"}) as connection:
        wait_for(lambda: pipeline.running.get("x1") and pipeline.running["x1"].waiter)
        assert http.post("/abort_request", json={"request_id": "x1"}).json()["success"] is True
        received = receive_until(connection, b"[DONE]")
    assert b'"finish_reason":"abort"' in received
    assert http.post("/abort_request", json={"rid": "x1"}).json()["success"] is False


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_speech_is_nobodys_failure(http, pipeline, base_url, stream):
    """499: five of them would be five failures of the server to a router."""
    pipeline.hangs_after = 0
    spoken = {"input": "Hi", "voice": "default", "stream": stream}
    with ThreadPoolExecutor(1) as thread, httpx.Client(base_url=base_url, trust_env=False) as other:
        answer = thread.submit(http.post, "/v1/audio/speech", json=spoken, headers={"x-request-id": "aloud"})
        wait_for(lambda: pipeline.running.get("aloud") and pipeline.running["aloud"].waiter)
        assert other.post("/abort_request", json={"request_id": "aloud"}).json()["success"] is True
        refused = answer.result(60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (499, "request_aborted")
    assert "aborted before there was any audio" in refused.json()["error"]["message"]


def test_a_caller_that_leaves_in_mid_upload_is_no_error(pipeline, base_url, caplog):
    caplog.set_level("INFO", "sglang_omni")
    host, port = base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: half\r\n"
            b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
        )
        time.sleep(0.05)
    wait_for(lambda: [record for record in caplog.records if "half" in record.getMessage()])
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert pipeline.requests == []


def leaving(base_url: str, body: dict) -> socket.socket:
    """A connection with a request on it, left when it is closed."""
    host, port = base_url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(60)
    data = json.dumps(body).encode()
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return connection


def receive_until(connection: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received:
        piece = connection.recv(4096)
        assert piece, f"closed after {received!r}"
        received += piece
    return received


def wait_for(holds) -> None:
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never became so")
