"""What goes through the router arrives as it was sent, but for what a hop adds, and answers in its place."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime

import aiohttp
import pytest
from router_harness import (
    Answer,
    Seen,
    assert_error,
    connect,
    get,
    metric,
    post,
    read_body,
    read_head,
    replicas,
    response,
    router,
    send_raw,
)

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


DATED = "Date: Tue, 15 Nov 1994 08:12:31 GMT\r\n"


def named(seen: Seen, name: str) -> list[str]:
    return [value for key, value in seen.headers if key.lower() == name]


async def ask(url: str, line: str, headers: str = "") -> Answer:
    return await send_raw(url, f"{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())


async def test_workers_are_reported_of_the_hop() -> None:
    async with replicas(None) as [one], router(one) as url:
        await post(url)
        await post(url, headers="Via: 1.0 fred, 1.1 p.example\r\n")
        await ask(url, "GET /s", "Connection: upgrade\r\nUpgrade: websocket\r\n")
        await send_raw(url, b"GET /old HTTP/1.0\r\n\r\n")
        assert [named(seen, "via") for seen in one.seen] == [
            ["1.1 sglang-omni-router"],
            ["1.0 fred, 1.1 p.example", "1.1 sglang-omni-router"],
            ["1.1 sglang-omni-router"],
            ["1.0 sglang-omni-router"],
        ]


async def test_answers_are_dated() -> None:
    async def dated(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(headers=DATED))

    async with replicas(dated, None) as [old, one]:
        async with router(old) as url:
            answer = await post(url)
            assert [value for name, value in answer.headers if name.lower() == "date"] == [DATED[6:].strip()]
        async with router(one) as url:
            for answer in (
                await post(url),
                await get(url, "/health"),
                await get(url, "/workers"),
                await ask(url, "PUT /workers"),
                await ask(url, "TRACE /"),
                await send_raw(url, b"nonsense\r\n\r\n"),
            ):
                assert parsedate_to_datetime(answer.header("date") or "").year > 2000, answer


@pytest.mark.parametrize("headers", ["", "Max-Forwards: 0\r\n", "Max-Forwards: 5\r\n"])
async def test_trace_is_refused(headers: str) -> None:
    """An answer would show what was added on the way, keys among it."""
    async with replicas(None) as [one], router(one, worker_api_key="secret") as url:
        answer = await ask(url, "TRACE /v1/models", headers)
        assert_error(answer, 405, "TRACE")
        assert "TRACE" not in (answer.header("allow") or "TRACE")
        assert one.seen == []


async def test_options_go_as_far_as_they_may() -> None:
    async with replicas(None) as [one], router(one) as url:
        answer = await ask(url, "OPTIONS /v1/chat/completions", "Max-Forwards: 0\r\n")
        assert (answer.status, one.seen) == (204, [])
        assert "POST" in (answer.header("allow") or "")
        for given, passed in (("2", "1"), ("1", "0"), ("x", "x")):
            assert (await ask(url, "OPTIONS /x", f"Max-Forwards: {given}\r\n")).status == 200
            assert one.seen[-1].header("max-forwards") == passed
        assert (await ask(url, "OPTIONS /x")).status == 200
        await ask(url, "GET /x", "Max-Forwards: 0\r\n")
        assert len(one.seen) == 5


async def test_models_are_asked_for_on_kept_connections() -> None:
    async def lists(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b'{"object": "list", "data": [{"id": "m"}]}'))

    async with replicas(lists) as [one], router(one) as url:
        for _ in range(10):
            assert b'"m"' in (await get(url, "/v1/models")).body
        assert len(one.seen) == 10
        # Or none: those of health checks are kept too.
        assert await metric(url, "worker_connections_total") <= 1


async def test_models_are_asked_for_again_where_a_kept_connection_was_closed() -> None:
    async def lists(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if len(one.seen) % 2 == 0:
            writer.transport.abort()
            return
        writer.write(response(b'{"object": "list", "data": [{"id": "m"}]}'))

    async with replicas(lists) as [one], router(one) as url:
        for _ in range(3):
            assert b'"m"' in (await get(url, "/v1/models")).body


async def test_bodies_that_are_held_have_a_bound_together() -> None:
    async with replicas(None) as [one], router(one, max_held_bytes=2_050_000) as url:
        slow = []
        for _ in range(3):
            reader, writer = await connect(url)
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 700_000)
            slow.append((reader, writer))
            await asyncio.sleep(0.3)  # So that it is the last one which is too much.
        line, headers = await asyncio.wait_for(read_head(slow[2][0]), 60)
        answer = Answer(line, headers, await read_body(slow[2][0], headers))
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        assert b"router_out_of_resources" in answer.body
        assert b"max_held_bytes" in answer.body
        # What fits goes on, and what was held is free again.
        for reader, writer in slow[:2]:
            writer.write(b"x" * 300_000)
            assert "200" in (await read_head(reader))[0]
        assert (await post(url, b"x" * 1_000_000)).status == 200
        for _, writer in slow:
            writer.close()
