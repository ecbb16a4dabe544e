"""Forty and more wrong requests: each is refused in OpenAI's shape, with a message that says what to do next,
and none reaches the pipeline.

A row is a usage, the status, the code, the field, and words that the message must have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted_pipeline import CAPABILITIES, ScriptedPipeline, serving
from websockets.sync.client import connect

from sglang_omni.serve.front.access import Access


@pytest.fixture(autouse=True)
def nothing_is_asked(pipeline: ScriptedPipeline) -> Iterator[None]:
    yield
    assert pipeline.requests == []


HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT, SPEECH, HEARD = "/v1/chat/completions", "/v1/audio/speech", "/v1/audio/transcriptions"
JSON = "application/json"
Told = tuple[int, str, str | None, str]


def refusal(answer: httpx.Response) -> Told:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error["code"], error["param"], error["message"]


def check(reported: Told, status: int, code: str, param: str | None, words: str) -> None:
    assert reported[:3] == (status, code, param), reported
    assert words in reported[3]


def content(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


FIELDS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"temprature": 1}, "unknown_parameter", "temprature", "did you mean 'temperature'?"),
    ({"foo": 1}, "unknown_parameter", "foo", "unknown field 'foo'"),
    ({"min_tokens": 3}, "unsupported_parameter", "min_tokens", "not supported here; leave it out"),
    ({"max_tokens": "5"}, "invalid_type", "max_tokens", "must be a whole number, not the text '5'"),
    ({"max_tokens": 1.5}, "invalid_type", "max_tokens", "must be a whole number, not 1.5"),
    ({"max_tokens": -1}, "invalid_value", "max_tokens", "must be at least 1, not -1"),
    ({"temperature": 3}, "invalid_value", "temperature", "must be at most 2, not 3"),
    ({"top_p": 0}, "invalid_value", "top_p", "must be more than 0, not 0"),
    ({"stop": ["a"] * 17}, "invalid_value", "stop", "at most 16 items, has 17"),
    ({"stop": 5}, "invalid_type", "stop", "must be a text or a list of texts"),
    ({"stream": "yes"}, "invalid_type", "stream", "must be true or false, not the text 'yes'"),
    ({"stream": 1}, "invalid_type", "stream", "must be true or false"),
    ({"stream_options": {}}, "unsupported_parameter", "stream_options", "only allowed when stream is true"),
    ({"messages": []}, "invalid_value", "messages", "must not be empty"),
    ({"messages": "hi"}, "invalid_type", "messages", "must be a list, not the text 'hi'"),
    ({"messages": [{"role": "king", "content": "x"}]}, "invalid_value", "messages[0].role", "not 'king'"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content", "needs content"),
    (content({"type": "smell"}), "invalid_type", "messages[0].content[0]", "type is one of: text,"),
    (content({"type": "text"}), "missing_required_parameter", "messages[0].content[0].text", "is required"),
    (
        content({"type": "image_url", "image_url": {"url": "data:,"}}),
        "unsupported_value",
        "messages[0].content[0]",
        "takes no image input; it takes audio, text",
    ),
    ({"modalities": ["smell"]}, "invalid_value", "modalities[0]", "must be 'text' or 'audio', not 'smell'"),
    ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio", "needs 'audio' among the modalities"),
    (
        {"modalities": ["audio"], "audio": {"voice": "bob"}},
        "unsupported_value",
        "audio.voice",
        "has no voice 'bob'; it has",
    ),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice", "send tools, or leave it out"),
    ({"response_format": {"type": "xml"}}, "invalid_type", "response_format", "json_schema"),
    ({"timeout": 0}, "invalid_value", "timeout", "must be more than 0"),
    ({"request_id": "has space"}, "invalid_value", "request_id", "no spaces"),
    ({"stage_params": {"thinkr": {}}}, "unknown_parameter", "stage_params.thinkr", "did you mean 'thinker'?"),
    ({"store": True}, "unsupported_value", "store", "the only value is false"),
]


@pytest.mark.parametrize(("fields", "code", "param", "words"), FIELDS)
def test_fields(http: httpx.Client, fields: dict[str, Any], code: str, param: str, words: str) -> None:
    check(refusal(http.post(CHAT, json=HELLO | fields)), 400, code, param, words)


BODIES = [
    (b'{"messages": [', JSON, 400, "invalid_json", "the body is not valid JSON: "),
    (b"", JSON, 400, "invalid_type", "must be a JSON object; this one is empty"),
    (b"[1]", JSON, 400, "invalid_type", "must be a JSON object"),
    (b'"text"', JSON, 400, "invalid_type", "must be a JSON object"),
    (b"\xff\xfe", JSON, 400, "invalid_json", "JSON"),
    (
        b"a=b",
        "application/x-www-form-urlencoded",
        415,
        "unsupported_media_type",
        "Content-Type: application/json",
    ),
    (b"x" * (2 << 20), JSON, 413, "request_too_large", "--max-body-size"),
]


@pytest.mark.parametrize(("body", "kind", "status", "code", "words"), BODIES)
def test_bodies(http: httpx.Client, body: bytes, kind: str, status: int, code: str, words: str) -> None:
    answer = http.post(CHAT, content=body, headers={"content-type": kind})
    check(refusal(answer), status, code, None, words)


ROUTES = [
    ("GET", CHAT, 405, "method_not_allowed", "takes POST, not GET"),
    ("DELETE", "/v1/models", 405, "method_not_allowed", "takes GET, not DELETE"),
    ("PUT", "/ping", 405, "method_not_allowed", "takes GET and POST, not PUT"),
    ("POST", "/v1/chat/completion", 404, "unknown_url", "did you mean /v1/chat/completions?"),
    ("POST", "/chat/completions", 404, "unknown_url", "did you mean /v1/chat/completions?"),
    ("POST", "/v1/v1/chat/completions", 404, "unknown_url", "did you mean /v1/chat/completions?"),
    ("GET", "/v1/realtime", 404, "unknown_url", "it is a WebSocket"),
    ("GET", "/v1/models/gpt-4o", 404, "model_not_found", "this server has 'scripted'"),
]


@pytest.mark.parametrize(("method", "path", "status", "code", "words"), ROUTES)
def test_routes(http: httpx.Client, method: str, path: str, status: int, code: str, words: str) -> None:
    param = "model" if code == "model_not_found" else None
    check(refusal(http.request(method, path)), status, code, param, words)


def test_what_is_near_nothing_gets_no_hint(http: httpx.Client) -> None:
    reported = refusal(http.post("/v1/images/generations", json={}))
    check(reported, 404, "unknown_url", None, "no such route: POST /v1/images/generations")
    assert "did you mean" not in reported[3]


SOUND = {"file": ("a.wav", b"RIFF")}
FORMS: list[tuple[dict[str, Any], str, str | None, str]] = [
    (
        {"json": {}},
        "invalid_content_type",
        "file",
        "must be multipart/form-data with the recording as 'file'",
    ),
    ({"files": {"recording": b"x"}}, "invalid_type", "recording", "the recording's is 'file'"),
    (
        {"data": {"model": "scripted"}, "files": {"file": (None, "a.wav")}},
        "missing_required_parameter",
        "file",
        "must be sent as a file, not as text",
    ),
    ({"files": {"file": ("a.wav", b"")}}, "invalid_audio", "file", "the recording is empty"),
    (
        {"data": {"response_format": "xml"}, "files": SOUND},
        "invalid_value",
        "response_format",
        "'srt' or 'vtt', not 'xml'",
    ),
    ({"data": {"temperature": "hot"}, "files": SOUND}, "invalid_value", "temperature", "a number, not 'hot'"),
    ({"data": {"stream": "maybe"}, "files": SOUND}, "invalid_value", "stream", "true or false, not 'maybe'"),
    (
        {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
        "invalid_form",
        None,
        "Missing boundary",
    ),
]


@pytest.mark.parametrize(("form", "code", "param", "words"), FORMS)
def test_forms(http: httpx.Client, form: dict[str, Any], code: str, param: str | None, words: str) -> None:
    check(refusal(http.post(HEARD, **form)), 400, code, param, words)


SPOKEN: list[tuple[dict[str, Any], str, str, str]] = [
    ({}, "missing_required_parameter", "input", "is required"),
    ({"input": " "}, "invalid_value", "input", "must not be blank"),
    ({"input": "a" * 20_000}, "invalid_value", "input", "at most 16384 characters, has 20000"),
    ({"input": "a", "speed": 9}, "invalid_value", "speed", "must be at most 4, not 9"),
    ({"input": "a", "response_format": "ogg"}, "invalid_value", "response_format", "'pcm', not 'ogg'"),
]


@pytest.mark.parametrize(("body", "code", "param", "words"), SPOKEN)
def test_speech(http: httpx.Client, body: dict[str, Any], code: str, param: str, words: str) -> None:
    check(refusal(http.post(SPEECH, json=body)), 400, code, param, words)


EVENTS: list[tuple[str, str, str | None, str]] = [
    ("hello", "invalid_json", None, "the event is not valid JSON"),
    ('{"a": 1}', "missing_required_parameter", "type", "type: is required"),
    ('{"type": "sesion.update"}', "invalid_value", "type", "did you mean 'session.update'?"),
    ('{"type": "input_audio_buffer.append", "audio": "???"}', "invalid_base64", "audio", "not valid base64"),
    ('{"type": "conversation.item.delete", "item_id": "no"}', "item_not_found", "item_id", "no item 'no'"),
    (
        json.dumps(
            {
                "type": "session.update",
                "session": {
                    "type": "realtime",
                    "audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 7}}},
                },
            }
        ),
        "invalid_value",
        "session.audio.input.turn_detection.threshold",
        "must be at most 1, not 7",
    ),
]


@pytest.mark.parametrize(("event", "code", "param", "words"), EVENTS)
def test_events(base_url: str, event: str, code: str, param: str | None, words: str) -> None:
    with connect(base_url.replace("http", "ws") + "/v1/realtime", proxy=None) as session:
        session.recv(60)
        session.send(event)
        error = json.loads(session.recv(60))["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert words in error["message"]


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """A server that asks for a key."""
    access = Access(api_keys=("right",))
    with serving(ScriptedPipeline(), CAPABILITIES, "scripted", access=access) as url:  # type: ignore[arg-type]
        yield url


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, 'send it as "Authorization: Bearer KEY"'),
        ({"authorization": "Bearer wrong"}, "the API key is not one of this server's"),
        ({"authorization": "Basic right"}, 'send it as "Authorization: Bearer KEY"'),
    ],
)
def test_keys(locked: str, headers: dict[str, str], words: str) -> None:
    answer = httpx.post(locked + CHAT, json=HELLO, headers=headers, trust_env=False)
    check(refusal(answer), 401, "invalid_api_key", None, words)
