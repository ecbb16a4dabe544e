"""Keys of clients and administrators over HTTP, and what web pages may have browsers send."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from owned_server import Served, served
from waiting import PATIENCE
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sglang_omni.serve import create_app
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.front.auth import ADMIN_PATHS, OPEN_PATHS

CLIENT, OTHER, ADMIN = "client-key", "other-key", "admin-key"
JSON = {"content-type": "application/json"}
EVIL = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
# What acts; the bodies are good ones.
ACTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"json": {"prompt": "hi"}},
    "/v1/chat/completions": {"json": {"messages": [{"role": "user", "content": "hi"}]}},
    "/v1/audio/speech": {"json": {"input": "hi"}},
    "/v1/audio/speech/batch": {"json": {"items": [{"input": "hi"}]}},
    "/v1/audio/voices": {"files": {"audio_sample": ("a.wav", b"RIFF")}},
    "/v1/audio/transcriptions": {"files": {"file": ("a.wav", b"RIFF")}},
    "/v1/audio/translations": {"files": {"file": ("a.wav", b"RIFF")}},
    "/v1/realtime/calls": {"files": {"sdp": (None, "v=0")}},
    "/v1/realtime/calls/{call_id}/hangup": {},
    "/generate": {"json": {"text": "hi"}},
    "/tokenize": {"json": {"prompt": "hi"}},
    "/detokenize": {"json": {"tokens": [1]}},
    "/v1/responses": {"json": {"input": "hi"}},
    "/v1/responses/{response_id}/cancel": {},
    "/v1/embeddings": {"json": {"input": "hi"}},
    "/v1/realtime/client_secrets": {"json": {}},
    "/abort_request": {"json": {"rid": "x"}},
    "/flush_cache": {},
    "/ping": {},
    "/start_profile": {},
    "/stop_profile": {},
}
READS = ("/", "/get_load", "/get_model_info", "/get_server_info", "/health", "/health_generate", "/metrics")
READS += ("/model_info", "/openapi.json", "/ping", "/v1/models", "/v1/models/{name:path}", "/version")
READS += ("/v1/audio/voices/{name}", "/traces/{request_id:path}", "/pipeline", "/pipeline/load")
READS += ("/pipeline/requests",)
READS += ("/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def code_of(answer: httpx.Response) -> tuple[int, Any]:
    return answer.status_code, answer.json()["error"]["code"] if answer.is_error else None


@pytest.fixture
async def keyless() -> AsyncIterator[Served]:
    async with served() as server:
        yield server


@pytest.fixture
async def keyed() -> AsyncIterator[Served]:
    access = Access(api_keys=(CLIENT, OTHER), admin_key=ADMIN, allowed_hosts=("gpu-box",))
    async with served(access=access) as server:
        yield server


def test_every_route_is_one_that_was_thought_of_here() -> None:
    paths = set(create_app(None).openapi()["paths"]) | {"/"}  # type: ignore[arg-type]
    named = {path.replace(":path}", "}") for path in (*ACTS, *READS)} - {"/openapi.json"}
    assert paths == named


async def test_all_but_health_needs_a_key(keyed: Served) -> None:
    for path in READS:
        url = re.sub("{.*}", "x", path)
        for headers in (
            {},
            {"authorization": "Bearer"},
            bearer("client-ke"),
            {"authorization": f"Basic {CLIENT}"},
        ):
            answer = await keyed.http.get(url, headers=headers)
            if path in OPEN_PATHS:
                assert answer.status_code == 200, path
            else:
                assert code_of(answer) == (401, "invalid_api_key"), path
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["type"] == "authentication_error"
                assert answer.headers["x-request-id"]
    assert (await keyed.http.get("/page/css/base.css")).status_code == 200
    for path, body in ACTS.items():
        if path not in OPEN_PATHS:
            assert code_of(await keyed.http.post(path, **body)) == (401, "invalid_api_key"), path
    assert (await keyed.http.options("/v1/completions")).status_code == 401
    for path in ("/nothing", "/health/", "//health", "/health%2f..%2fmetrics"):
        assert (await keyed.http.get(keyed.base_url + path)).status_code == 401, path
    assert keyed.stage.sessions == []


async def test_each_of_the_keys_does(keyed: Served) -> None:
    for way in (bearer(CLIENT), bearer(OTHER), bearer(ADMIN), {"authorization": f"bearer  {CLIENT}"}):
        assert (await keyed.http.get("/v1/models", headers=way)).status_code == 200
        assert (await keyed.ask("hi", way)).json()["choices"][0]["text"] == "hi"


async def test_administration_needs_the_admin_key(keyed: Served) -> None:
    for method, path in (("GET", "/get_server_info"), ("POST", "/flush_cache")):
        assert path in ADMIN_PATHS
        answer = await keyed.http.request(method, path, headers=bearer(CLIENT))
        assert code_of(answer) == (403, "admin_key_needed")
        assert answer.json()["error"]["type"] == "permission_error"
        assert (await keyed.http.request(method, path, headers=bearer(ADMIN))).status_code == 200


async def test_an_admin_key_alone_leaves_the_rest_open() -> None:
    async with served(access=Access(admin_key=ADMIN)) as server:
        assert (await server.ask("hi")).status_code == 200
        assert code_of(await server.http.post("/flush_cache")) == (401, "invalid_api_key")
        assert code_of(await server.http.post("/flush_cache", headers=bearer("x"))) == (
            401,
            "invalid_api_key",
        )
        assert (await server.http.post("/flush_cache", headers=bearer(ADMIN))).status_code == 200


async def test_without_an_admin_key_this_machine_administers_and_no_one_by_way_of_it(keyless: Served) -> None:
    for method, path in (("GET", "/get_server_info"), ("POST", "/flush_cache")):
        assert (await keyless.http.request(method, path)).status_code == 200
        for name in ("x-forwarded-for", "forwarded", "via"):
            answer = await keyless.http.request(method, path, headers={name: "127.0.0.1"})
            assert code_of(answer) == (403, "admin_key_needed")
            assert "--admin-api-key" in answer.json()["error"]["message"]


@pytest.mark.parametrize("keys", [(), (CLIENT,)])
async def test_without_an_admin_key_other_machines_do_not(keys: tuple[str, ...]) -> None:
    app = create_app(None, access=Access(api_keys=keys))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app, client=("192.0.2.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for method, path in (("GET", "/get_server_info"), ("POST", "/flush_cache")):
            answer = await http.request(method, path, headers=bearer(CLIENT) if keys else {})
            assert code_of(answer) == (403, "admin_key_needed")


@pytest.mark.parametrize("source", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.0.0.6"])
async def test_a_proxys_loopback_address_is_not_this_machine(source: str) -> None:
    transport = httpx.ASGITransport(create_app(None, access=Access()), client=(source, 4711))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await http.post("/flush_cache", headers={"origin": "http://elsewhere"})
        # A page may not change anything; that is found out only after the source was accepted.
        expected = "admin_key_needed" if source == "127.0.0.6" else "cross_site_request"
        assert code_of(answer) == (403, expected)


async def test_administration_goes_by_a_known_name(keyless: Served, keyed: Served) -> None:
    port = keyless.base_url.rpartition(":")[2]
    for host, known in (
        ("127.0.0.1", True),
        ("localhost", True),
        (f"LOCALHOST:{port}", True),
        ("[::1]:80", True),
        ("192.0.2.1", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("gpu-box", False),
        ("", False),
        ("[", False),
    ):
        for method, path in (("POST", "/flush_cache"), ("GET", "/get_server_info")):
            answer = await keyless.http.request(method, path, headers={"host": host})
            assert code_of(answer) == ((200, None) if known else (403, "unknown_host")), host
            if not known:
                assert "--allowed-hosts" in answer.json()["error"]["message"]
        assert (await keyless.ask("hi", {"host": host})).status_code == 200
    for host, status in (("gpu-box:8000", 200), ("GPU-box", 200), ("evil.example", 403)):
        answer = await keyed.http.post("/flush_cache", headers=bearer(ADMIN) | {"host": host})
        assert answer.status_code == status, host


@pytest.mark.parametrize(
    "headers",
    [
        EVIL,
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://127.0.0.1:x"},
        {"origin": "http://[::1"},
    ],
)
async def test_a_page_of_another_origin_drives_nothing(keyless: Served, headers: dict[str, str]) -> None:
    for path, body in ACTS.items():
        answer = await keyless.http.post(path, headers=headers, **body)
        assert code_of(answer) == (403, "cross_site_request"), path
    answer = await keyless.http.get("/health_generate", headers=headers)
    assert code_of(answer) == (403, "cross_site_request")
    simple = headers | {"content-type": "text/plain"}
    answer = await keyless.http.post("/v1/completions", content=b'{"prompt": "hi"}', headers=simple)
    assert code_of(answer) == (403, "cross_site_request")
    assert keyless.stage.sessions == []


async def test_a_page_of_its_own_and_programs_go_on(keyless: Served, keyed: Served) -> None:
    own = {"origin": keyless.base_url}
    for headers in (
        {},
        own,
        own | {"sec-fetch-site": "same-origin"},
        # A router keeps the page's Host and Origin; behind one that does not, browsers say it.
        {"origin": "http://router:30000", "host": "router:30000"},
        {"origin": "https://router", "host": "router"},
        {"origin": "http://router", "host": "router:80"},
        {"origin": "http://router:30000", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        # Of an origin that a router's --cors-allowed-origins has: it names all that it passes on.
        EVIL | {"x-request-id": "by-a-router"},
    ):
        for path, body in ACTS.items():
            if path in ADMIN_PATHS and "x-request-id" in headers:
                continue
            if path in ADMIN_PATHS and "router" in headers.get("host", ""):
                continue
            answer = await keyless.http.post(path, headers=headers, **body)
            assert answer.status_code != 403, (path, headers, answer.text)
    assert (await keyed.ask("hi", EVIL | bearer(CLIENT))).status_code == 200


@pytest.mark.parametrize("named", [{}, {"x-request-id": "x"}, bearer(ADMIN)])
async def test_no_page_of_another_origin_administers(keyed: Served, keyless: Served, named: Any) -> None:
    server = keyed if "authorization" in named else keyless
    answer = await server.http.post("/flush_cache", headers=EVIL | named)
    assert code_of(answer) == (403, "cross_site_request")


async def test_nothing_is_changed_by_get(keyless: Served) -> None:
    for path in ("/flush_cache", "/abort_request", "/v1/completions", "/generate"):
        for method in ("GET", "HEAD"):
            answer = await keyless.http.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/flush_cache", "/abort_request"])
async def test_bodies_that_change_something_are_json(keyless: Served, path: str) -> None:
    body = b'{"rid": "x"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
        answer = await keyless.http.post(path, content=body, headers={"content-type": kind})
        assert code_of(answer) == (415, "unsupported_media_type"), kind
    assert code_of(await keyless.http.post(path, content=body)) == (415, "unsupported_media_type")
    assert code_of(await keyless.http.post(path, content=chunks(body))) == (415, "unsupported_media_type")
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        assert (await keyless.http.post(path, content=body, headers={"content-type": kind})).is_success
    assert (await keyless.http.post("/flush_cache")).status_code == 200


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def test_a_refused_upload_gets_its_answer(keyed: Served) -> None:
    host, port = keyed.base_url.removeprefix("http://").split(":")
    answer = await keyed.http.post("/v1/completions", content=b"x" * 4_000_000, headers=JSON)
    assert answer.status_code == 401
    with socket.create_connection((host, int(port)), timeout=PATIENCE):
        assert (await keyed.http.get("/health")).status_code == 200


async def test_a_browsers_question_for_another_page_is_answered_with_the_flag(
    keyed: Served, keyless: Served
) -> None:
    """It has no key, and its answer is all that a page's developer sees."""
    asked = {"origin": "http://localhost:5173", "access-control-request-method": "POST"}
    for server in (keyed, keyless):
        answer = await server.http.options("/v1/chat/completions", headers=asked)
        assert code_of(answer) == (403, "cross_site_request")
        assert "--allowed-origins" in answer.json()["error"]["message"]


async def test_pages_of_allowed_origins_ask_and_read() -> None:
    good, foreign = {"origin": "https://app.example", "sec-fetch-site": "cross-site"}, EVIL
    access = Access(api_keys=(CLIENT,), admin_key=ADMIN, allowed_origins=("https://app.example",))
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    async with served(access=access) as server:
        allowed = await server.http.options("/v1/completions", headers=good | asked)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        assert (await server.http.options("/v1/completions", headers=foreign | asked)).status_code == 400
        answer = await server.ask("hi", bearer(CLIENT) | good)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        # A refusal can be read as well; administration stays closed.
        refused = await server.ask("hi", good)
        assert code_of(refused) == (401, "invalid_api_key")
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        flush = await server.http.post("/flush_cache", headers=bearer(ADMIN) | good)
        assert code_of(flush) == (403, "cross_site_request")


async def test_without_a_key_pages_of_allowed_origins_ask_and_others_do_not() -> None:
    async with served(access=Access(allowed_origins=("https://app.example",))) as server:
        page = {"origin": "https://app.example", "sec-fetch-site": "cross-site"}
        assert (await server.ask("hi", page)).status_code == 200
        assert code_of(await server.ask("hi", EVIL)) == (403, "cross_site_request")


async def test_the_keys_of_a_tenant_are_one_owner() -> None:
    tenants = {"a": "blue", "b": "blue", "c": "red"}
    async with served(access=Access(api_keys=("a", "b", "c", "d"), tenants=tenants)) as server:
        running = asyncio.ensure_future(server.ask("hold", bearer("a") | {"x-request-id": "mine"}))
        async with asyncio.timeout(PATIENCE):
            while not server.stage.held:
                await asyncio.sleep(0.01)
        aborted = []
        for key in ("c", "d", "b"):
            answer = await server.http.post("/abort_request", json={"rid": "mine"}, headers=bearer(key))
            aborted.append(answer.json()["success"])
        assert aborted == [False, False, True]
        await running
        metrics = (await server.http.get("/metrics", headers=bearer("d"))).text
    assert 'sglang_omni_tenant_requests_total{status="200",tenant="blue"}' in metrics
    assert 'status="200",tenant="red"' in metrics


async def test_a_model_has_several_names() -> None:
    async with served(model_name="first", aliases=("second",)) as server:
        ids = [model["id"] for model in (await server.http.get("/v1/models")).json()["data"]]
        assert ids == ["first", "second"]
        for name in ids:
            assert (await server.http.get(f"/v1/models/{name}")).json()["id"] == name
            answer = await server.http.post("/v1/completions", json={"prompt": "hi", "model": name})
            assert answer.json()["model"] == name
        wrong = await server.http.post("/v1/completions", json={"prompt": "hi", "model": "third"})
        assert wrong.status_code == 404
        assert "this server has 'first', 'second'" in wrong.json()["error"]["message"]


async def test_what_probes_of_others_ask(keyless: Served) -> None:
    assert (await keyless.http.get("/ping")).content == (await keyless.http.post("/ping")).content == b""
    assert (await keyless.http.get("/version")).json()["version"]


async def test_a_websocket_to_an_administrators_path_is_no_such_route(keyless: Served) -> None:
    url = keyless.base_url.replace("http", "ws")
    for path in ("/flush_cache", "/get_server_info"):
        with pytest.raises(InvalidStatus) as refused:
            async with connect(url + path, proxy=None):
                pass
        # As any path that takes no WebSocket.
        with pytest.raises(InvalidStatus) as nothing:
            async with connect(f"{url}/nothing", proxy=None):
                pass
        assert refused.value.response.status_code == nothing.value.response.status_code < 500
