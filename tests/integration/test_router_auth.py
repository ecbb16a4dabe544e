"""API keys: which clients are let in, what workers are shown; and what web pages of other origins may ask."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from router_harness import (
    Answer,
    Seen,
    assert_error,
    bearer,
    comes_to,
    get,
    launched,
    post,
    replicas,
    response,
    router,
    send_raw,
    status_of,
)


def assert_unauthorized(answer: Answer, words: str) -> None:
    assert_error(answer, 401, words, code="invalid_api_key")
    assert answer.header("www-authenticate") == "Bearer"


async def test_without_a_key_of_the_router_nothing_is_let_in() -> None:
    async with replicas(None) as [replica], router(replica, api_key=["one", "two"]) as url:
        await comes_to(200, status_of, url, "/health")
        assert_unauthorized(await post(url), "Authorization: Bearer KEY")
        for wrong in ("on", "onee", "three", ""):
            assert_unauthorized(await post(url, headers=bearer(wrong)), "not one of this router's")
        assert_unauthorized(await post(url, headers="Authorization: Basic one\r\n"), "not one of")
        for path in ("/v1/models", "/get_loads", "/anything", "/health/x", "/health?x=1"):
            expected = 200 if path.startswith("/health?") else 401
            assert (await get(url, path)).status == expected, path
        assert (await post(url, path="/health")).status == 401
        assert replica.seen == []
        for right in ("one", "two"):
            assert (await post(url, headers=bearer(right))).status == 200


async def test_a_large_body_is_refused_before_it_is_read() -> None:
    async with replicas(None) as [replica], router(replica, api_key=["k"]) as url:
        assert_unauthorized(await post(url, b"x" * 3_000_000), "an API key is needed")
    assert replica.seen == []


async def test_probes_and_scrapers_need_no_key() -> None:
    async with replicas(None) as [replica], router(replica, api_key=["k"]) as url:
        await comes_to(200, status_of, url, "/health")
        for path in ("/readiness", "/liveness", "/metrics"):
            assert (await get(url, path)).status == 200


async def test_workers_see_the_clients_key_unless_they_have_their_own() -> None:
    async with replicas(None) as [replica]:
        for options, expected in (
            ({}, "Bearer mine"),
            ({"api_key": ["mine"]}, "Bearer mine"),
            ({"worker_api_key": "theirs"}, "Bearer theirs"),
            ({"api_key": ["mine"], "worker_api_key": "theirs"}, "Bearer theirs"),
        ):
            async with router(replica, **options) as url:
                assert (await post(url, headers=bearer("mine"))).status == 200
            assert [value for name, value in replica.seen[-1].headers if name.lower() == "authorization"] == [
                expected
            ]


NAMED = "Connection: close, X-Request-Id, authorization, x-sglang-omni-owner, x-mine\r\nX-Mine: 1\r\n"


async def test_a_client_cannot_strike_out_what_the_router_adds() -> None:
    """``Connection`` names headers that end here: the client's own, before the router adds any."""
    options = {"api_key": ["mine"], "worker_api_key": "theirs"}
    async with replicas(None) as [replica], router(replica, **options) as url:
        assert (await post(url, headers=bearer("mine"))).status == 200
        whole = replica.seen[-1]
        keyed = NAMED.replace("authorization, ", "") + bearer("mine")
        assert (await post(url, headers=keyed)).status == 200
        seen = replica.seen[-1]
        assert seen.header("authorization") == "Bearer theirs"
        assert seen.header("x-sglang-omni-owner") == whole.header("x-sglang-omni-owner")
        assert seen.header("x-request-id")
        assert seen.header("x-mine") is None
        # A key that is struck out is not shown.
        assert_unauthorized(await post(url, headers=NAMED + bearer("mine")), "an API key is needed")


LEADING_OUT = (
    "../server_info",
    "a/../../metrics",
    "%2e%2e/metrics",
    ".%2E/x",
    "..;/x",
    "a%2fb",
    "./x",
    "..\\x",
)


async def test_a_page_is_shown_without_a_key_and_without_the_workers() -> None:
    options = {"api_key": ["mine"], "worker_api_key": "theirs"}
    async with replicas(None) as [replica], router(replica, **options) as url:
        for path in ("/", "/page/app.js", "/page/css/main-1.css"):
            for headers, shown in (("", None), (bearer("wrong"), None), (bearer("mine"), "Bearer theirs")):
                assert (await get(url, path, headers)).status == 200
                assert replica.seen[-1].header("authorization") == shown, path
        before = len(replica.seen)
        for name in LEADING_OUT:
            assert_unauthorized(await get(url, f"/page/{name}"), "an API key is needed")
        assert len(replica.seen) == before


async def test_a_page_shows_its_key_among_the_protocols_of_its_websocket() -> None:
    """A browser's WebSocket has no other header that a page may fill."""

    async def upgrade(url: str, offer: str) -> Answer:
        head = "GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        return await send_raw(url, f"{head}Sec-WebSocket-Protocol: {offer}\r\n\r\n".encode())

    offer = "realtime, openai-insecure-api-key.mine, other"
    async with replicas(None) as [replica]:
        for options, authorization, offered in (
            ({}, None, offer),
            ({"worker_api_key": "theirs"}, "Bearer theirs", "realtime, other"),
        ):
            async with router(replica, api_key=["mine"], **options) as url:
                assert (await upgrade(url, offer)).status == 200
                seen = replica.seen[-1]
                assert seen.header("authorization") == authorization
                assert seen.header("sec-websocket-protocol") == offered
                assert seen.header("x-sglang-omni-owner")
                assert_unauthorized(
                    await upgrade(url, "realtime, openai-insecure-api-key.other"), "not one of this router's"
                )
                assert_unauthorized(await upgrade(url, "realtime, mine"), "an API key is needed")


async def test_keys_from_files(tmp_path: Path) -> None:
    clients, worker = tmp_path / "clients", tmp_path / "worker"
    clients.write_text("one\n\n  two  \n")
    worker.write_text("theirs\n")
    options = {"api_key_file": str(clients), "worker_api_key_file": str(worker)}
    async with replicas(None) as [replica], router(replica, **options) as url:
        assert (await post(url, headers=bearer("two"))).status == 200
        assert (await post(url, headers=bearer("three"))).status == 401
    assert [seen.header("authorization") for seen in replica.seen] == ["Bearer theirs"]


async def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_OMNI_ROUTER_API_KEY", "one two")
    monkeypatch.setenv("SGLANG_OMNI_ROUTER_WORKER_API_KEY", "theirs")
    monkeypatch.setenv("SGLANG_OMNI_ROUTER_ADMIN_API_KEY", "admin")
    async with replicas(None) as [replica], launched("--worker-urls", replica.url) as (_, url):
        assert (await post(url, headers=bearer("two"))).status == 200
        assert (await post(url, headers=bearer("theirs"))).status == 401
        assert (await get(url, "/workers")).status == 401
        ask = f"GET /workers HTTP/1.1\r\nHost: localhost\r\n{bearer('admin')}\r\n"
        assert (await send_raw(url, ask.encode())).status == 200
    assert [seen.header("authorization") for seen in replica.seen] == ["Bearer theirs"]


PAGE = "https://app.example:8443"


def asks(origin: str) -> bytes:
    return (
        f"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\n"
        "Access-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: authorization,content-type\r\n\r\n"
    ).encode()


async def test_a_page_of_an_allowed_origin_may_ask_without_a_key() -> None:
    options = {"api_key": ["k"], "cors_allowed_origins": ["https://other.example", PAGE]}
    async with replicas(None) as [replica], router(replica, **options) as url:
        answer = await send_raw(url, asks(PAGE))
        assert answer.status == 204
        assert answer.header("access-control-allow-origin") == PAGE
        assert answer.header("access-control-allow-methods") == "POST"
        assert answer.header("access-control-allow-headers") == "authorization,content-type"
        assert answer.header("vary") == "origin"
        # Asking is all it may: the request itself needs the key, and can read why it was refused.
        answer = await send_raw(url, f"GET /v1/x HTTP/1.1\r\nHost: a\r\nOrigin: {PAGE}\r\n\r\n".encode())
        assert (answer.status, answer.header("access-control-allow-origin")) == (401, PAGE)
        answer = await send_raw(url, asks("https://evil.example"))
        assert (answer.status, answer.header("access-control-allow-origin")) == (401, None)
    assert replica.seen == []


@pytest.mark.parametrize("allowed", [[PAGE], ["*"]])
async def test_what_a_worker_says_about_origins_does_not_count(allowed: list[str]) -> None:
    async def answered(seen: Seen, writer: asyncio.StreamWriter) -> None:
        headers = (
            "Access-Control-Allow-Origin: https://elsewhere\r\nAccess-Control-Allow-Credentials: true\r\n"
        )
        writer.write(response(headers=headers + "Vary: accept\r\n"))

    async with replicas(answered) as [replica], router(replica, cors_allowed_origins=allowed) as url:
        answer = await send_raw(url, f"GET /v1/x HTTP/1.1\r\nHost: a\r\nOrigin: {PAGE}\r\n\r\n".encode())
    lines = [(name.lower(), value) for name, value in answer.headers]
    assert [value for name, value in lines if name == "access-control-allow-origin"] == [PAGE]
    assert [value for name, value in lines if name == "vary"] == ["accept", "origin"]
    assert answer.header("access-control-allow-credentials") is None
    assert answer.header("access-control-expose-headers") == "*"


async def test_without_allowed_origins_the_worker_decides() -> None:
    async def answered(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(headers="Access-Control-Allow-Origin: https://elsewhere\r\n"))

    async with replicas(answered) as [replica], router(replica) as url:
        answer = await send_raw(url, asks(PAGE))
    assert answer.header("access-control-allow-origin") == "https://elsewhere"
    assert [seen.line for seen in replica.seen] == ["OPTIONS /v1/chat/completions HTTP/1.1"]
