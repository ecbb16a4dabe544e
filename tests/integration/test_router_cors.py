"""Web pages of other origins: what a browser asks first, and what it lets a page read."""

from __future__ import annotations

import asyncio

import pytest
from router_harness import Seen, replicas, response, router, send_raw

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


async def test_what_is_no_origin() -> None:
    with pytest.raises(ValueError, match=r"cors_allowed_origins: \"app\.example\" is not an origin"):
        async with router(cors_allowed_origins=["app.example"]):
            pass
