"""One request has one id: in the request's header, the answer's, the body, the logs, and for aborting it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from typing import Any

import httpx
import openai
import pytest
from scripted_pipeline import ScriptedPipeline
from test_api_errors import HELLO, leaving, receive_until, wait_for
from waiting import rounds

from sglang_omni.client import Client, ClientError, GenerateRequest, RequestError

CHAT = "/v1/chat/completions"
MADE = re.compile(r"[0-9a-f]{32}")


def ask(http: httpx.Client, header: str | None = None, **fields: Any) -> httpx.Response:
    headers = {} if header is None else {"x-request-id": header}
    return http.post(CHAT, json=HELLO | fields, headers=headers)


@pytest.mark.parametrize(
    ("path", "body", "prefix"),
    [
        (CHAT, HELLO, "chatcmpl-"),
        (CHAT, HELLO | {"stream": True}, "chatcmpl-"),
        ("/v1/completions", {"prompt": "Hi"}, "cmpl-"),
        ("/v1/completions", {"prompt": "Hi", "stream": True}, "cmpl-"),
        ("/generate", {"text": "Hi"}, ""),
        ("/generate", {"text": "Hi", "stream": True}, ""),
        ("/v1/audio/speech", {"input": "Hi", "response_format": "wav"}, None),
        ("/v1/audio/speech", {"input": "Hi", "stream": True, "response_format": "pcm"}, None),
    ],
)
def test_the_headers_id_is_the_only_one(http, pipeline, path, body, prefix):
    answer = http.post(path, json=body, headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert [name for name, _ in pipeline.requests] == ["mine"]
    if prefix is not None:
        text = answer.text.splitlines()[0].removeprefix("data: ")
        fields = json.loads(text)
        assert (fields.get("id") or fields["meta_info"]["id"]) == f"{prefix}mine"


def test_speech_in_a_chat_has_it_too(http):
    fields = ask(http, "mine", modalities=["text", "audio"]).json()
    assert fields["choices"][0]["message"]["audio"]["id"] == "audio-mine"


def test_transcriptions_have_it_too(http, pipeline):
    files = {"file": ("a.wav", b"RIFF")}
    answer = http.post("/v1/audio/transcriptions", files=files, headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
    assert pipeline.requests[-1][0] == "mine"


@pytest.mark.parametrize("given", ["", "two words", "x" * 129])
def test_an_id_that_cannot_be_one_is_replaced(http, pipeline, given):
    made = ask(http, given).headers["x-request-id"]
    assert MADE.fullmatch(made)
    assert pipeline.requests[-1][0] == made


def test_openais_header_names_it_if_there_is_no_other(http):
    named = {"x-client-request-id": "theirs"}
    assert http.post(CHAT, json=HELLO, headers=named).headers["x-request-id"] == "theirs"
    both = named | {"x-request-id": "mine"}
    assert http.post(CHAT, json=HELLO, headers=both).headers["x-request-id"] == "mine"


@pytest.mark.parametrize("name", ["request_id", "rid"])
def test_the_bodys_id_counts_before_the_headers(http, pipeline, name):
    body = {"text": "Hi", name: "chosen"}
    answer = http.post("/generate", json=body, headers={"x-request-id": "mine"})
    assert (answer.headers["x-request-id"], answer.json()["meta_info"]["id"]) == ("chosen", "chosen")
    assert pipeline.requests[-1][0] == "chosen"


@pytest.mark.parametrize(
    ("status", "method", "path", "body"),
    [
        (400, "POST", CHAT, b"{"),
        (400, "POST", CHAT, b'{"messages": [], "model": "scripted"}'),
        (404, "GET", "/v1/nothing", b""),
        (404, "POST", CHAT, json.dumps(HELLO | {"model": "other"}).encode()),
        (405, "GET", CHAT, b""),
        (413, "POST", CHAT, b"x" * (1 << 21)),
        (400, "POST", "/v1/audio/transcriptions", b"not a form"),
        (200, "GET", "/v1/models", b""),
    ],
)
def test_every_answer_has_it(http, caplog, status, method, path, body):
    caplog.set_level(logging.INFO, "sglang_omni.serve")
    headers = {"x-request-id": "mine", "content-type": "application/json"}
    answer = http.request(method, path, content=body, headers=headers)
    assert (answer.status_code, answer.headers.get_list("x-request-id")) == (status, ["mine"])
    if status >= 400:
        wait_for(lambda: f"Request mine: {method} {path} was answered with {status}" in caplog.text)
    assert MADE.fullmatch(http.request(method, path, content=body).headers["x-request-id"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("gone"), KeyError("x")])
def test_failures_have_it_in_answer_and_log(http, pipeline, caplog, stream, error):
    pipeline.error = error
    answer = ask(http, "mine", stream=stream)
    assert (answer.status_code, answer.headers.get_list("x-request-id")) == (500, ["mine"])
    assert "Request mine failed" in caplog.text


@pytest.mark.parametrize("form", ["mine", "chatcmpl-mine", "audio-mine"])
def test_any_form_of_it_aborts(http, pipeline, base_url, caplog, form):
    caplog.set_level(logging.INFO, "sglang_omni.serve")
    pipeline.hangs_after = 1
    with streaming(base_url, "mine") as connection:
        wait_for(lambda: hangs(pipeline, "mine"))
        assert http.post("/abort_request", json={"rid": form}).json()["success"] is True
        assert b'"finish_reason":"abort"' in receive_until(connection, b"[DONE]")
    assert "Request mine is aborted" in caplog.text


def test_the_headers_id_aborts_what_the_body_has_named(http, pipeline, base_url):
    pipeline.hangs_after = 1
    with streaming(base_url, "mine", request_id="chosen") as connection:
        wait_for(lambda: hangs(pipeline, "chosen"))
        assert http.post("/abort_request", json={"request_id": "mine"}).json()["success"] is True
        receive_until(connection, b"[DONE]")


def test_an_id_that_looks_like_an_answers_aborts_its_own_request(http, pipeline, base_url):
    pipeline.hangs_after = 1
    with streaming(base_url, "chatcmpl-mine") as connection:
        wait_for(lambda: hangs(pipeline, "chatcmpl-mine"))
        assert http.post("/abort_request", json={"rid": "mine"}).json()["success"] is False
        assert http.post("/abort_request", json={"rid": "chatcmpl-mine"}).json()["success"] is True
        receive_until(connection, b"[DONE]")


def test_one_id_for_several_requests_at_once(http, pipeline, base_url):
    """As services do that pass on the id of what they are themselves asked: it need not be unique."""
    pipeline.hangs_after = 1
    with streaming(base_url, "mine") as first:
        wait_for(lambda: hangs(pipeline, "mine"))
        with streaming(base_url, "mine") as second:
            wait_for(lambda: len(pipeline.running) == 2 and all(map_waiters(pipeline)))
            more = next(name for name in pipeline.running if name != "mine")
            assert re.fullmatch(r"mine-[0-9a-f]{8}", more)
            head = receive_until(second, b"\r\n\r\n").decode().lower()
            assert f"x-request-id: {more}\r\n" in head
            # Its own name reaches the second alone.
            assert http.post("/abort_request", json={"rid": f"chatcmpl-{more}"}).json()["success"] is True
            wait_for(lambda: list(pipeline.running) == ["mine"])
            with streaming(base_url, "mine") as third:
                wait_for(lambda: len(pipeline.running) == 2 and all(map_waiters(pipeline)))
                # The name that they share, both.
                assert http.post("/abort_request", json={"rid": "mine"}).json()["success"] is True
                receive_until(third, b"[DONE]")
                receive_until(first, b"[DONE]")
    # It is free a moment after its last byte.
    wait_for(lambda: ask(http, "mine").headers["x-request-id"] == "mine")


def test_an_id_of_the_body_is_unique_and_its_refusal_leaves_the_first_alone(http, pipeline, base_url):
    pipeline.hangs_after = 0
    with leaving(base_url, HELLO | {"request_id": "twice"}):
        wait_for(lambda: hangs(pipeline, "twice"))
        for _ in range(2):
            answer = ask(http, request_id="twice")
            assert (answer.status_code, answer.json()["error"]["param"]) == (409, "request_id")
        assert pipeline.aborted == []
        assert "twice" in pipeline.running


async def test_a_refused_duplicate_aborts_nothing(pipeline):
    pipeline.hangs_after = 0
    client = Client(pipeline)
    first = client.generate(GenerateRequest(prompt="p", stream=False), "twice")
    task = asyncio.ensure_future(anext(first))
    while not hangs(pipeline, "twice"):
        await asyncio.sleep(0.01)
    for stream in (False, True):
        with pytest.raises(RequestError, match="already exists"):
            await anext(client.generate(GenerateRequest(prompt="p", stream=stream), "twice"))
    await rounds()
    assert pipeline.aborted == []
    await client.abort("twice")
    assert (await task).finish_reason == "abort"


def test_several_prompts_are_aborted_by_their_one_id(http, pipeline, base_url):
    pipeline.hangs_after = 0
    body = {"prompt": ["a", "b"]}
    with leaving_to(base_url, "/v1/completions", body, "mine") as connection:
        wait_for(lambda: len(pipeline.running) == 2 and all(map_waiters(pipeline)))
        assert sorted(pipeline.running) == ["mine-0", "mine-1"]
        assert http.post("/abort_request", json={"rid": "cmpl-mine"}).json()["success"] is True
        receive_until(connection, b'"object":"text_completion"')
    assert sorted(pipeline.aborted)[:2] == ["mine-0", "mine-1"]


def test_openais_client_shows_the_id_that_aborts(api, pipeline, http):
    pipeline.hangs_after = 1
    stream = api.chat.completions.create(model="scripted", messages=HELLO["messages"], stream=True)
    shown = stream.response.headers["x-request-id"]
    first = next(stream)
    assert first.id == f"chatcmpl-{shown}"
    assert http.post("/abort_request", json={"rid": first.id}).json()["success"] is True
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "abort"


def test_openais_errors_name_it(api, pipeline):
    pipeline.error = RuntimeError("gone")
    with pytest.raises(openai.InternalServerError) as caught:
        api.chat.completions.create(model="scripted", messages=HELLO["messages"])
    assert caught.value.request_id == pipeline.requests[-1][0]


def test_our_clients_failures_name_it(pipeline, base_url):
    async def ask() -> None:
        async with Client(base_url) as client:
            request = GenerateRequest(messages=HELLO["messages"], stream=False)
            pipeline.error = RuntimeError("gone")
            with pytest.raises(ClientError, match=r"gone \(request 'mine'\)"):
                await client.completion(request, request_id="mine")
            pipeline.error_after = 1
            with pytest.raises(ClientError, match=r"gone \(request 'mine'\)"):
                async for _ in client.completion_stream(request, request_id="mine"):
                    pass
        async with Client("http://127.0.0.1:1") as nowhere:
            with pytest.raises(ClientError, match=r"no server answers at http://127\.0\.0\.1:1: "):
                await nowhere.completion(request, request_id="mine")

    asyncio.run(ask())


def hangs(pipeline: ScriptedPipeline, request_id: str) -> bool:
    running = pipeline.running.get(request_id)
    return running is not None and running.waiter is not None


def map_waiters(pipeline: ScriptedPipeline) -> list[bool]:
    return [running.waiter is not None for running in pipeline.running.values()]


def streaming(base_url: str, header: str, **fields: Any) -> socket.socket:
    return leaving_to(base_url, CHAT, HELLO | {"stream": True} | fields, header)


def leaving_to(base_url: str, path: str, body: dict[str, Any], header: str) -> socket.socket:
    """A connection with a request of this id on it, left when it is closed."""
    host, port = base_url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(60)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-request-id: {header}\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return connection
