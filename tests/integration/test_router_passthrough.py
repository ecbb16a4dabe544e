"""What goes through the router arrives as it was sent."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from router_harness import Seen, connect, post, read_head, replicas, response, router, send_raw

DATE = "Date: Tue, 15 Nov 1994 08:12:31 GMT\r\n"


async def test_request_line_headers_and_body_are_untouched() -> None:
    body = bytes(range(256)) * 3
    head = (
        "PATCH /v1/Some%20thing/%C3%A9?b=2&a=1&a=%2F+x&empty= HTTP/1.1\r\n"
        "Host: public.name:8443\r\n"
        "X-ODD-Case: Value, with; marks\r\n"
        "Authorization: Bearer sk-secret\r\n"
        "x-repeated: one\r\n"
        "x-repeated: two\r\n"
        "X-Request-Id: mine\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Content-Length: {len(body)}\r\n"
    )
    async with replicas(None) as [replica], router(replica) as url:
        answer = await send_raw(url, f"{head}\r\n".encode() + body)
    assert answer.status == 200
    [seen] = replica.seen
    sent = [tuple(line.split(": ", 1)) for line in head.split("\r\n")[1:] if line]
    assert seen.line == head.split("\r\n")[0]
    assert seen.headers == [*sent, ("via", "1.1 sglang-omni-router")]
    assert seen.body == body


async def test_answer_is_untouched_but_for_the_workers_name_and_the_id() -> None:
    body = b"\x00\xff{not json"

    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            response(
                body,
                "299 Quite Peculiar",
                "X-Odd: 1\r\nset-cookie: a\r\nset-cookie: b\r\nServer: me\r\n" + DATE,
            )
        )

    async with replicas(handler) as [replica], router(replica) as url:
        answer = await post(url, headers="x-request-id: mine\r\n")
        assert answer.line == "HTTP/1.1 299 Quite Peculiar"
        assert answer.body == body
        assert answer.headers == [
            ("content-length", str(len(body))),
            ("X-Odd", "1"),
            ("set-cookie", "a"),
            ("set-cookie", "b"),
            ("Server", "me"),
            ("Date", "Tue, 15 Nov 1994 08:12:31 GMT"),
            ("x-sglang-omni-worker", replica.url),
            ("x-request-id", "mine"),
        ]


async def test_hop_by_hop_headers_stop_here() -> None:
    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            response(
                headers="Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-End: 2\r\n"
            )
        )

    hop = "Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nTE: trailers\r\nProxy-Authorization: x\r\n"
    hop += "X-Kept: 2\r\nX-Request-Id: 3\r\n"
    async with replicas(handler) as [replica], router(replica) as url:
        answer = await post(url, headers=hop)
    [seen] = replica.seen
    kept = ["host", "content-type", "x-kept", "x-request-id", "content-length", "via"]
    assert [name.lower() for name, _ in seen.headers] == kept
    kept = ["content-length", "x-end", "x-sglang-omni-worker", "x-request-id", "date"]
    assert [name.lower() for name, _ in answer.headers] == kept


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PROPFIND"])
async def test_any_method_and_unknown_route(method: str) -> None:
    async with replicas(None) as [replica], router(replica) as url:
        answer = await send_raw(url, f"{method} /no/such/route HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert (answer.status, replica.seen[0].line) == (200, f"{method} /no/such/route HTTP/1.1")


@pytest.mark.parametrize("method_and_status", ["HEAD 200", "GET 304", "GET 204"])
async def test_answers_without_a_body_leave_the_connection_usable(method_and_status: str) -> None:
    method, status = method_and_status.split()

    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        length = "" if status == "204" else "content-length: 77\r\n"
        writer.write(f"HTTP/1.1 {status} X\r\n{length}etag: e\r\n\r\n".encode())

    async with replicas(handler) as [replica], router(replica) as url:
        reader, writer = await connect(url)
        for _ in range(2):
            writer.write(f"{method} /file HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            line, headers = await read_head(reader)
            assert (line.split(" ")[1], ("etag", "e") in headers) == (status, True)
            assert (("content-length", "77") in headers) == (method == "HEAD")
        writer.close()
        assert len(replica.seen) == 2


async def test_chunked_upload_arrives_whole() -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (b"hello ", b"w" * 70_000, b"!"))
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with replicas(None) as [replica], router(replica) as url:
        assert (await send_raw(url, head + chunks + b"0\r\n\r\n")).status == 200
    assert replica.seen[0].body == b"hello " + b"w" * 70_000 + b"!"
    assert replica.seen[0].header("content-length") is None


async def test_multipart_upload() -> None:
    async with replicas(None) as [replica], router(replica) as url, aiohttp.ClientSession() as session:
        form = aiohttp.FormData()
        form.add_field("file", b"RIFF\x00\x01", filename="a.wav", content_type="audio/wav")
        form.add_field("model", "m")
        async with session.post(f"{url}/v1/audio/transcriptions", data=form) as answer:
            assert answer.status == 200
    [seen] = replica.seen
    assert seen.header("content-type").startswith("multipart/form-data; boundary=")  # type: ignore[union-attr]
    assert b"RIFF\x00\x01" in seen.body


async def test_an_answer_that_ends_with_its_connection() -> None:
    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end")
        writer.close()

    async with replicas(handler) as [replica], router(replica) as url:
        assert (await post(url)).body == b"until the end"


async def test_prompts_of_any_bytes_are_routed() -> None:
    """Bytes that begin no character, and NULs before them, are prompts to the router like others."""
    async with replicas(None, None) as served, router(*served, policy="cache_aware") as url:
        for first in (b"\x80a", b"\x00\x80", b"\xc3\x80", b"\x00\xc3\x80", b"\x00", b"\xff\x80\x80\x80\x80"):
            for second in (b"\x80b", b"\x00\x80c", b"\x00\xc3d", b""):
                body = b'{"prompt":"' + first + second + b'"}'
                assert (await post(url, body)).status == 200
