"""Requests the router refuses: the right status, in OpenAI's shape, and the worker never sees them."""

from __future__ import annotations

import pytest
from router_harness import asking, assert_error, get, post, read_answer, replicas, router, send_raw


async def test_announced_body_over_the_limit() -> None:
    async with replicas(None) as [replica], router(replica, max_body_bytes=1000) as url:
        assert_error(await post(url, b"x" * 1001), 413, "1000 bytes")
        assert (await post(url, b"x" * 1000)).status == 200
    assert len(replica.seen) == 1


async def test_a_client_that_is_still_sending_can_read_why_it_was_refused() -> None:
    async with replicas(None) as [replica], router(replica, max_body_bytes=1000) as url:
        reader, writer = await asking(url, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n")
        for _ in range(20):
            writer.write(b"x" * 1_000_000)
            await writer.drain()
        assert_error(await read_answer(reader), 413, "1000 bytes")
        writer.close()
    assert replica.seen == []


async def test_connect_is_refused() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        answer = await send_raw(url, b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n")
        assert_error(answer, 405, "CONNECT")


@pytest.mark.parametrize("policy", ["round_robin", "cache_aware"])
async def test_chunked_body_over_the_limit(policy: str) -> None:
    head = (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b"".join(b"%x\r\n%s\r\n" % (600, b"x" * 600) for _ in range(2)) + b"0\r\n\r\n"
    async with replicas(None) as [replica], router(replica, max_body_bytes=1000, policy=policy) as url:
        assert_error(await send_raw(url, head + body), 413, "1000 bytes")
        assert (await post(url)).status == 200
    assert [seen.body for seen in replica.seen] == [b"{}"]


@pytest.mark.parametrize(
    "headers",
    [
        b"X-Big: " + b"v" * 70_000,
        b"X-Big: " + b"v" * 600_000,
        b"\r\n".join(b"X-%d: 1" % n for n in range(200)),
    ],
    ids=["one of 70 KB", "one of 600 KB", "200 headers"],
)
async def test_headers_over_the_limit(headers: bytes) -> None:
    async with replicas(None) as [replica], router(replica) as url:
        assert_error(
            await send_raw(url, b"GET / HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n\r\n"), 431, "headers"
        )
    assert replica.seen == []


@pytest.mark.parametrize("request_bytes", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"])
async def test_what_is_not_http(request_bytes: bytes) -> None:
    async with replicas(None) as [replica], router(replica) as url:
        assert_error(await send_raw(url, request_bytes), 400, "HTTP/1.1")
    assert replica.seen == []


async def test_wrong_method_on_the_routers_own_path() -> None:
    async with router() as url:
        answer = await send_raw(url, b"PUT /workers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        assert_error(answer, 405, "GET, POST, DELETE")
        assert answer.header("allow") == "GET, POST, DELETE"
        assert (await get(url, "/workers")).status == 200
