"""Bodies that are cheap to send and dear to read: refused at once, in few words, beside other requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from pydantic_core import from_json

from sglang_omni.proto import RequestError
from sglang_omni.serve.front import bodies
from sglang_omni.serve.front.bodies import MAX_DEPTH, MAX_NAMES, MAX_PARTS, MAX_VALUES, read_json
from sglang_omni.serve.front.limits import BodyLimits
from sglang_omni.serve.front.validation import validation_error
from sglang_omni.serve.state import Capabilities

CHAT, COMPLETION, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
HELLO = '"messages":[{"role":"user","content":"Hi"}]'
MANY = 1_000_000
ZEROS = "[" + "0," * (MANY - 1) + "0]"
NAMED = "{" + ",".join(f'"f{index}":0' for index in range(MANY)) + "}"


class Reads:
    """What has been done with bodies: in which threads, how many were parsed, and the errors of each."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.parsed = 0
        self.errors: list[int] = []

    def read_json(self, *args: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        return read_json(*args)

    def from_json(self, data: bytes) -> Any:
        self.parsed += 1
        return from_json(data)

    def validation_error(self, errors: Sequence[Any], model: Any) -> RequestError:
        self.errors.append(len(errors))
        return validation_error(errors, model)


class Served:
    def __init__(self, pipeline: Any, http: httpx.Client) -> None:
        self.pipeline, self.http = pipeline, http

    def post(self, path: str, body: str) -> httpx.Response:
        return self.http.post(path, content=body.encode(), headers={"content-type": "application/json"})

    def error(self, path: str, body: str, status: int = 400) -> dict[str, Any]:
        answer = self.post(path, body)
        assert answer.status_code == status, answer.text[:500]
        assert len(answer.content) < 4096
        return answer.json()["error"]


@pytest.fixture(scope="module")
def served(serve: Any) -> Iterator[Served]:
    limits = {"max_body_size": BodyLimits.max_body_size}
    with (
        serve(Capabilities(), "own", **limits) as (pipeline, base_url),
        httpx.Client(base_url=base_url, trust_env=False, timeout=600) as http,
    ):
        yield Served(pipeline, http)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    reads = Reads()
    for name in ("read_json", "from_json", "validation_error"):
        monkeypatch.setattr(bodies, name, getattr(reads, name))
    return reads


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        *[
            (CHAT, "{" + HELLO + f',"{field}":{ZEROS}' + "}", code)
            for field, code in [
                ("images", "invalid_type"),
                ("audios", "invalid_type"),
                ("videos", "invalid_type"),
                ("stop", "invalid_type"),
                ("stop_token_ids", "invalid_value"),
                ("tools", "invalid_type"),
                ("modalities", "invalid_value"),
                ("metadata", "invalid_type"),
                ("no_such_field", "unknown_parameter"),
            ]
        ],
        (CHAT, '{"messages":' + ZEROS + "}", "invalid_type"),
        (CHAT, '{"messages":[{"role":"user","content":' + ZEROS + "}]}", "invalid_type"),
        (CHAT, '{"messages":[' + ",".join(['{"role":"king"}'] * 10_000) + "]}", "invalid_value"),
        (CHAT, '{"messages":[{"role":"assistant","audio":{"codes":' + ZEROS + "}}]}", "invalid_type"),
        (CHAT, NAMED, "request_too_complex"),
        (CHAT, "{" + HELLO + ',"metadata":' + NAMED + "}", "request_too_complex"),
        (CHAT, "{" + HELLO + ',"stage_params":' + NAMED + "}", "request_too_complex"),
        (CHAT, "{" + HELLO + ',"tools":[' + ",".join(["{}"] * MANY) + "]}", "request_too_complex"),
        (CHAT, "{" + HELLO + ',"tools":' + "[" * MANY + "]" * MANY + "}", "request_too_complex"),
        (COMPLETION, '{"prompt":[' + ",".join(["-1"] * MANY) + "]}", "invalid_value"),
        (COMPLETION, '{"prompt":[' + ",".join(['""'] * MANY) + "]}", "request_too_complex"),
        (COMPLETION, '{"prompt":[' + ",".join(["[0]"] * 30_000) + "]}", "invalid_value"),
        (COMPLETION, '{"prompt":"x","prompt":' + "[" + ZEROS + "," + ZEROS + "]}", "request_too_complex"),
        (GENERATE, '{"input_ids":[' + ",".join(["0.5"] * MANY) + "]}", "invalid_type"),
        (GENERATE, '{"text":"x","sampling_params":{"stop":' + ZEROS + "}}", "invalid_type"),
        (CHAT, '{"messages":[' + "0," * 30_000_000 + "0]}", "request_too_complex"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else None,
)
def test_refused_at_once(served: Served, reads: Reads, path: str, body: str, code: str) -> None:
    assert served.error(path, body)["code"] == code
    # Beside the event loop, which serves others meanwhile.
    assert reads.threads == ["bodies_0"]
    if code == "request_too_complex":
        assert reads.parsed == 0
    else:
        # A report of a million errors took 20 s.
        assert reads.errors == [1]


def test_what_a_body_holds_at_most_is_read_beside_the_event_loop(served: Served, reads: Reads) -> None:
    """Nothing that is let through stops the others either."""
    ids = "[" + ",".join(["151643"] * (MAX_VALUES - 9)) + "]"
    turns = ",".join(['{"role":"user","content":"' + "a" * 1500 + '"}'] * 4096)
    media = '{"type":"image_url","image_url":{"url":"' + "\\/" * 1_000_000 + "A" * 50_000_000 + '"}}'
    for path, body in [
        (GENERATE, '{"input_ids":' + ids + "}"),
        (CHAT, '{"messages":[' + turns + "]}"),
        (CHAT, '{"messages":[{"role":"user","content":[' + media + "]}]}"),
    ]:
        answer = served.post(path, body)
        assert answer.status_code == 200, answer.text[:500]
    assert reads.threads == ["bodies_0"] * 3
    (*_, first, _, last) = served.pipeline.requests
    assert first[1].inputs["prompt_token_ids"] == json.loads(ids)
    url = last[1].inputs["messages"][0]["content"][0]["image_url"]["url"]
    assert (len(url), url[:2], url[-2:]) == (51_000_000, "//", "AA")


def test_text_is_limited_apart_from_media(served: Served) -> None:
    text = "a" * (9 << 20)
    error = served.error(CHAT, '{"messages":[{"role":"user","content":"' + text + '"}]}', 413)
    assert error["code"] == "request_too_large"
    assert "--max-json-size" in error["message"]
    for field in ('"images":["%s"]', '"audios":["%s"]', '"videos":["%s"]'):
        assert served.post(CHAT, "{" + HELLO + "," + field % text + "}").status_code == 200


def test_limits_of_a_json_body(served: Served) -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    parts = ",".join(["[]"] * MAX_PARTS)
    names = ",".join(f'"f{index}":0' for index in range(MAX_NAMES + 1))
    for value, said in [
        (deep, f"over {MAX_DEPTH} levels deep"),
        ("[" + "0," * MAX_VALUES + "0]", f"over {MAX_VALUES} values"),
        (f"[{parts}]", f"over {MAX_PARTS} texts, lists and objects"),
        ("{" + names + "}", f"over {MAX_NAMES} fields"),
    ]:
        error = served.error(CHAT, "{" + HELLO + ',"tools":' + value + "}")
        assert error["code"] == "request_too_complex"
        assert said in error["message"]


@pytest.mark.parametrize("depth", [501, 5_000, 100_000])
def test_nesting_is_a_400(served: Served, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    for field in ('"request_id":%s', '"no_such_field":%s', '"stage_params":{"a":{"b":%s}}'):
        error = served.error(CHAT, "{" + HELLO + "," + field % nested + "}")
        assert error["code"] == "request_too_complex"


def test_a_few_of_many_wrong_fields_are_named(served: Served) -> None:
    wrong = ",".join(f'"no_such_field_{index:03}":0' for index in range(200))
    message = served.error(CHAT, "{" + HELLO + "," + wrong + "}")["message"]
    assert message.startswith("unknown field 'no_such_field_000' (also wrong: no_such_field_001, ")
    assert message.endswith("no_such_field_010 and 189 more)")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, "{" + HELLO + ',"model":"%s"}', 400),
        (CHAT, "{" + HELLO + ',"%s":1}', 400),
        (CHAT, "{" + HELLO + ',"stage_params":{"%s":{}}}', 400),
        (CHAT, "{" + HELLO + ',"stage_params":{"a":{"%s":0}}}', 400),
        (CHAT, "{" + HELLO + ',"metadata":{"%s":"a"}}', 400),
        (CHAT, "{" + HELLO + ',"request_id":"%s"}', 400),
        (CHAT, '{"messages":[{"role":"%s"}]}', 400),
        ("/v1/audio/speech", '{"input":"a","voice":"%s"}', 400),
        ("/abort_request", '{"rid":"%s"}', 400),
    ],
)
def test_long_names_come_back_short(served: Served, path: str, body: str, status: int) -> None:
    error = served.error(path, body % ("n" * 3_000_000), status)
    assert len(error["message"]) < 2100
    assert len(error["param"]) < 300


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (('{"messages":[{"role":"user","content":"Hi"}]}').encode("utf-16"), "JSON"),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', "JSON"),
        (b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}', "JSON"),
        (b"{" + HELLO.encode() + b',"seed":1' + b"0" * 5000 + b"}", "JSON"),
        (b"{" + HELLO.encode() + b',"seed":1' + b"0" * 500 + b"}", "seed"),
        (b"{" + HELLO.encode() + b',"temperature":1e999}', "temperature"),
        (b"{" + HELLO.encode() + b',"max_tokens":1208925819614629174706176}', "max_tokens"),
        (b"{" + HELLO.encode() + b"} and more", "JSON"),
    ],
)
def test_odd_values_are_400(served: Served, body: bytes, said: str) -> None:
    answer = served.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_a_byte_order_mark_is_passed_over(served: Served) -> None:
    body = b"\xef\xbb\xbf{" + HELLO.encode() + b"}"
    answer = served.http.post(CHAT, content=body, headers={"content-type": "application/json; charset=utf-8"})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_only_json_is_read_as_json(served: Served, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    for path in (CHAT, "/abort_request"):
        answer = served.http.post(path, content=b"{" + HELLO.encode() + b"}", headers=headers)
        assert answer.status_code == 415
        assert "Content-Type: application/json" in answer.json()["error"]["message"]
