"""What goes through the router arrives as it was sent."""

from __future__ import annotations

import asyncio
import hashlib
import json

import aiohttp
import pytest
from aiohttp import web
from router_harness import (
    PATIENCE,
    Seen,
    connect,
    get,
    post,
    read_body,
    read_head,
    replicas,
    response,
    router,
    send_raw,
)


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
    assert seen.headers == sent
    assert seen.body == body


async def test_answer_is_untouched_but_for_the_workers_name_and_the_id() -> None:
    body = b"\x00\xff{not json"

    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            response(
                body, "299 Quite Peculiar", "X-Odd: 1\r\nset-cookie: a\r\nset-cookie: b\r\nServer: me\r\n"
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
    kept = ["host", "content-type", "x-kept", "x-request-id", "content-length"]
    assert [name.lower() for name, _ in seen.headers] == kept
    kept = ["content-length", "x-end", "x-sglang-omni-worker", "x-request-id"]
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


async def test_large_json_body_streams_and_arrives_whole() -> None:
    body = json.dumps({"model": "m", "prompt": "p" * 20_000_000}).encode()
    async with replicas(None) as [replica], router(replica, policy="cache_aware") as url:
        assert (await post(url, body)).status == 200
    assert hashlib.sha256(replica.seen[0].body).digest() == hashlib.sha256(body).digest()


async def test_the_rest_of_a_large_body_is_not_waited_for() -> None:
    """The worker has the start of an upload while the client still holds its end back."""
    started = asyncio.Event()

    async def worker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, headers = await read_head(reader)
        start = await reader.readexactly(1_500_000)
        started.set()
        rest = await reader.readexactly(int(dict(headers)["Content-Length"]) - len(start))
        writer.write(response(b"%d" % (len(start) + len(rest))))

    server = await asyncio.start_server(worker, "127.0.0.1", 0)
    worker_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    # Probes would hang on this worker, so they are left for later.
    async with router(worker_url, policy="cache_aware", probe_interval=3600.0) as url:
        reader, writer = await connect(url)
        head = (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n\r\n"
        )
        writer.write(head + b'{"prompt":"' + b"x" * 1_700_000)
        await asyncio.wait_for(started.wait(), PATIENCE)
        writer.write(b"x" * (2_000_000 - 1_700_000 - 11))
        _, headers = await read_head(reader)
        assert await read_body(reader, headers) == b"2000000"
        writer.close()
    server.close()


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


async def test_an_event_reaches_the_client_before_the_next_is_made() -> None:
    received = asyncio.Event()
    events = [f"data: {number}\n\n".encode() for number in range(5)]

    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await received.wait()
            received.clear()
        writer.write(b"0\r\n\r\n")

    async with (
        replicas(handler) as [replica],
        router(replica) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json={"stream": True}) as answer,
    ):
        assert answer.headers["content-type"] == "text/event-stream"
        for event in events:
            assert await asyncio.wait_for(answer.content.readuntil(b"\n\n"), PATIENCE) == event
            received.set()
        assert await answer.content.read() == b""


async def test_many_chunks_at_once_arrive_in_order_and_whole() -> None:
    events = [f"data: {number} {'y' * (number % 700)}\n\n".encode() for number in range(2000)]

    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n")

    async with replicas(handler) as [replica], router(replica) as url:
        for _ in range(3):
            assert (await post(url)).body == b"".join(events)


async def test_an_answer_that_ends_with_its_connection() -> None:
    async def handler(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end")
        writer.close()

    async with replicas(handler) as [replica], router(replica) as url:
        assert (await post(url)).body == b"until the end"


async def test_websocket() -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("realtime",))
        await socket.prepare(request)
        async for message in socket:
            if message.type == aiohttp.WSMsgType.TEXT:
                await socket.send_str(f"{request.query_string}:{message.data}")
            else:
                await socket.send_bytes(bytes(reversed(message.data)))
        return socket

    app = web.Application()
    app.router.add_get("/v1/realtime", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with router(f"http://127.0.0.1:{port}") as url, aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{url}/v1/realtime?model=m", protocols=("realtime",)) as socket:
            assert socket.protocol == "realtime"
            await socket.send_str("hello")
            assert await socket.receive_str() == "model=m:hello"
            await socket.send_bytes(bytes(range(256)) * 1000)
            assert await socket.receive_bytes() == bytes(reversed(bytes(range(256)) * 1000))
            workers = json.loads((await get(url, "/workers")).body)["workers"]
            assert workers[0]["load"] == 1
        # A route that does not upgrade answers as it is.
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{url}/nothing")
        assert refused.value.status == 404
    await runner.cleanup()


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_a_request_with_a_body_is_not_upgraded(protocol: str) -> None:
    offer = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\n"
    async with replicas(None) as [replica], router(replica) as url:
        assert (await post(url, b'{"prompt": "p"}', headers=offer)).status == 200
    [seen] = replica.seen
    assert seen.body == b'{"prompt": "p"}'
    assert {"upgrade", "http2-settings", "connection"}.isdisjoint(name.lower() for name, _ in seen.headers)
