"""Corners of HTTP/1.1 that must pass through the router byte for byte, or be translated with care."""

from __future__ import annotations

import asyncio

import pytest
from router_harness import (
    Seen,
    asking,
    connect,
    raw_worker,
    read_answer,
    read_head,
    replicas,
    response,
    router,
    send_raw,
)
from waiting import PATIENCE


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), PATIENCE)


async def conversation(url: str, request: bytes) -> bytes:
    """All that comes back on a connection that only sends `request`."""
    reader, writer = await asking(url, request)
    try:
        return await read_to_end(reader)
    finally:
        writer.close()


@pytest.mark.parametrize(
    "line",
    [
        "GET /",
        "GET /a//b/./../c/",
        "GET /%2e%2e/%2F%5c%00%ff?%00=%zz",
        "GET /q?",
        "GET /q??a=?&&=&b",
        "GET /q?a=b+c%20d&a=%E2%82%AC;x=/y:@!$'()*,",
        "GET /~user/-._~:@!$&'()*+,;=",
        "GET /q?odd={a:[1]}|^`",
        "GET /" + "long/" * 2000,
        "OPTIONS *",
        *(f"{method} /no/such/route" for method in ("PUT", "DELETE", "OPTIONS", "PROPFIND")),
    ],
)
async def test_methods_and_targets_pass_as_they_are(line: str) -> None:
    async with replicas(None) as [replica], router(replica) as url:
        answer = await send_raw(url, f"{line} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert (answer.status, replica.seen[0].line) == (200, f"{line} HTTP/1.1")


async def test_an_absolute_target_becomes_a_path() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        request = b"GET http://me@public.name:80/v1/x?y=%2F HTTP/1.1\r\nHost: other\r\n\r\n"
        assert (await send_raw(url, request)).status == 200
    [seen] = replica.seen
    assert (seen.line, seen.header("host")) == ("GET /v1/x?y=%2F HTTP/1.1", "public.name:80")


async def test_case_order_and_bytes_of_headers_in_both_directions() -> None:
    # Latin-1, UTF-8 and what is neither, empty values, repeats apart from each other, tabs inside.
    sent = [
        ("hOsT", "a"),
        ("X-B", "caf\xe9"),
        ("x-a", "\xe2\x82\xac"),
        ("X-Raw", "\x80\xff\xfe"),
        ("X-EMPTY", ""),
        ("Cookie", "a=1"),
        ("X-Tab", "one\ttwo"),
        ("Accept-ENCODING", "gzip, br;q=0.1"),
    ]
    back = [
        ("Content-LENGTH", "2"),
        ("sEt-CoOkIe", "a=1; Path=/"),
        ("X-Raw", "\xff\xfe\x80"),
        ("Empty", ""),
        ("ETag", 'W/"x"'),
    ]

    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in back)
        writer.write(f"HTTP/1.1 200 OK\r\n{lines}\r\nok".encode("latin-1"))

    async with replicas(handler) as [replica], router(replica) as url:
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent)
        reader, writer = await asking(url, f"GET / HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
        _, headers = await read_head(reader)
        writer.close()
    added = {"x-request-id", "x-sglang-omni-worker", "via", "date"}
    assert [pair for pair in replica.seen[0].headers if pair[0].lower() not in added] == sent
    assert [pair for pair in headers if pair[0].lower() not in added] == back


async def test_repeated_headers_stay_apart_and_in_their_order() -> None:
    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        cookies = "".join(f"Set-Cookie: c{n}=1; Expires=Thu, 01 Jan 2026 00:00:00 GMT\r\n" for n in range(5))
        writer.write(response(headers=cookies))

    async with replicas(handler) as [replica], router(replica) as url:
        tags = b"".join(b"X-Tag: %d, and more\r\n" % n for n in range(5))
        answer = await send_raw(url, b"GET / HTTP/1.1\r\nHost: a\r\n" + tags + b"\r\n")
    assert [value for name, value in replica.seen[0].headers if name == "X-Tag"] == [
        f"{n}, and more" for n in range(5)
    ]
    assert [value for name, value in answer.headers if name == "Set-Cookie"] == [
        f"c{n}=1; Expires=Thu, 01 Jan 2026 00:00:00 GMT" for n in range(5)
    ]


async def test_a_client_of_http_1_0_gets_an_end_it_understands() -> None:
    async def chunks(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        )

    async with replicas(chunks) as [replica], router(replica) as url:
        head, _, body = (await conversation(url, b"GET /old HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
        assert b" 200 OK" in head
        assert b"chunked" not in head.lower()
        assert body == b"onetwo"
    [seen] = replica.seen
    assert (seen.line, seen.header("host")) == ("GET /old HTTP/1.1", replica.url.removeprefix("http://"))


async def test_a_client_of_http_1_0_may_keep_its_connection() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        reader, writer = await connect(url)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            answer = await read_answer(reader)
            assert (answer.status, answer.header("connection")) == (200, "keep-alive")
        writer.close()
        assert len(replica.seen) == 2


async def test_a_worker_of_http_1_0() -> None:
    async def old(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nup to the end")
        writer.close()

    async with replicas(old) as [replica], router(replica) as url:
        for _ in range(2):
            answer = await send_raw(url, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (answer.line, answer.body) == ("HTTP/1.1 200 OK", b"up to the end")


async def test_a_client_that_asks_for_the_end_gets_it() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        reader, writer = await asking(url, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = await read_answer(reader)
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert await read_to_end(reader) == b""
        writer.close()
    assert replica.seen[0].header("connection") is None


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(seen.line.encode() + b"|" + seen.body))

    requests = b"".join(
        b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (n, n * 1000, b"b" * (n * 1000))
        for n in range(8)
    )
    async with replicas(echo, echo) as two, router(*two) as url:
        reader, writer = await asking(url, requests)
        for n in range(8):
            assert (await read_answer(reader)).body == b"POST /%d HTTP/1.1|" % n + b"b" * (n * 1000)
        writer.close()


async def test_trailers_of_an_answer_arrive() -> None:
    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ntrailer: X-Sum\r\ntransfer-encoding: chunked\r\n\r\n"
            b"4\r\nbody\r\n0\r\nX-Sum: 123\r\n\r\n"
        )

    async with replicas(handler) as [replica], router(replica) as url:
        request = b"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n"
        answer = await conversation(url, request)
    assert answer.lower().endswith(b"4\r\nbody\r\n0\r\nx-sum: 123\r\n\r\n")


@pytest.mark.parametrize("kind", ["application/json", "audio/wav"])
async def test_trailers_of_an_upload_arrive(kind: str) -> None:
    """Of a body that is read whole to be routed, and of one that streams."""
    received = asyncio.Event()
    raw = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        while not raw.endswith(b"\r\n\r\n"):
            raw.extend(await reader.read(1 << 16))
        received.set()
        writer.write(response())

    async with raw_worker(serve) as worker, router(worker) as url:
        head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nTrailer: X-Sum\r\n"
        reader, writer = await connect(url)
        writer.write(
            head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + b"4\r\nbody\r\n0\r\nX-Sum: 123\r\n\r\n"
        )
        await asyncio.wait_for(received.wait(), PATIENCE)
        assert (await read_answer(reader)).status == 200
        writer.close()
    assert raw.lower() == b"4\r\nbody\r\n0\r\nx-sum: 123\r\n\r\n"


@pytest.mark.parametrize("interim", ["100 Continue", "102 Processing", "103 Early Hints"])
async def test_what_a_worker_says_before_its_answer_does_not_confuse(interim: str) -> None:
    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {interim}\r\nLink: </x>\r\n\r\n".encode() + response(b"final"))

    async with replicas(handler) as [replica], router(replica) as url:
        reader, writer = await connect(url)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = await read_answer(reader)
            assert (answer.status, answer.body) == (200, b"final")
        writer.close()


async def test_expect_continue_is_answered_by_the_router() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        reader, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert (await read_head(reader))[0] == "HTTP/1.1 100 Continue"
        writer.write(b"hello")
        assert (await read_head(reader))[0] == "HTTP/1.1 200 OK"
        writer.close()
    assert (replica.seen[0].body, replica.seen[0].header("expect")) == (b"hello", None)


async def test_a_refused_body_is_not_asked_for() -> None:
    async with replicas(None) as [replica], router(replica, max_body_bytes=10) as url:
        reader, writer = await connect(url)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 50\r\n\r\n")
        assert (await read_head(reader))[0].startswith("HTTP/1.1 413 ")
        writer.close()
    assert replica.seen == []
