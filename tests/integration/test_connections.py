"""How long a client may say nothing, and how slowly it may take its answer."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from sweeps import swept_after
from waiting import PATIENCE, rounds, until

from sglang_omni.serve.launch import connections
from sglang_omni.serve.launch.connections import ConnectionLimits
from sglang_omni.serve.launch.web_server import WebServer
from sglang_omni.supervision.ports import bind

# Times that are to end are short; those that must not end in between are long.
LONG = 1000.0
HEAD = b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n"


class App:
    """Echoes bodies; ``/stream`` sends without end, and says when it was stopped."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.stopped = asyncio.Event()
        self.cuts = self.begun = 0

    def cut(self) -> None:
        self.cuts += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("no lifespan here")
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.set()
                return
            body += message["body"]
            if not message["more_body"]:
                break
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"connection", b"keep-alive")]}
        )
        self.begun += 1
        if scope["path"] == "/large":
            body = bytes(1_000_000)
        if scope["path"] == "/stream":
            leaving = asyncio.ensure_future(receive())
            while not leaving.done():
                await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
                await asyncio.sleep(0.001)
            self.stopped.set()
            return
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(**limits: Any) -> AsyncIterator[tuple[WebServer, App, int]]:
    app = App()
    server = WebServer(
        app,
        ConnectionLimits(**{"head_s": LONG, "idle_s": LONG, "stall_s": LONG, "sweep_s": 0.02} | limits),
        on_cut=app.cut,
    )
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        async with asyncio.timeout(PATIENCE):
            yield server, app, listener.getsockname()[1]
            server.should_exit = True
            await serving


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What still came before the server closed it. What it had not read yet makes the kernel reset it."""
    came = b""
    with suppress(ConnectionResetError):
        while piece := await reader.read(65536):
            came += piece
    return came


@pytest.mark.parametrize("said", [b"", b"G", b"GET / HTTP/1.1\r\nhost: a\r\n", HEAD])
async def test_a_head_that_does_not_come(said: bytes) -> None:
    async with served(head_s=0.1) as (server, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert await ended(reader) == b""
        assert server.connections.timed_out == 1


async def test_a_head_that_dribbles_after_an_answer() -> None:
    async with served(head_s=0.1) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n0123456789")
        await reader.readuntil(b"0123456789")
        for byte in b"GET":
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        await ended(reader)


async def test_a_connection_without_a_request_is_kept_for_its_own_time() -> None:
    async with served(head_s=0.1) as (server, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(HEAD + b"\r\n0123456789")
            await reader.readuntil(b"0123456789")
            await swept_after(server.connections, 0.3)
        writer.close()
    async with served(idle_s=0.1) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n0123456789")
        assert b"0123456789" in await ended(reader)


async def test_a_body_that_stalls() -> None:
    async with served(stall_s=0.1) as (_, app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n01234")
        assert await ended(reader) == b""
        await app.left.wait()


async def test_a_body_that_dribbles() -> None:
    async with served(stall_s=0.5, least_rate=1e6) as (_, app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD.replace(b"10", b"1000") + b"\r\n")

        async def dribble() -> None:
            while True:
                writer.write(b"a")
                await asyncio.sleep(0.1)

        dribbling = asyncio.ensure_future(dribble())
        assert await ended(reader) == b""
        dribbling.cancel()
        await app.left.wait()


async def test_a_client_that_takes_nothing_of_its_answer() -> None:
    async with served(stall_s=1.0) as (server, app, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
        await app.stopped.wait()
        while len(server.connections):
            await asyncio.sleep(0.01)


LARGE = HEAD.replace(b"10", b"20000000") + b"\r\n" + bytes(20_000_000)


@pytest.mark.parametrize(
    "asked", [LARGE, b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n"], ids=["whole", "stream"]
)
async def test_a_client_that_takes_its_answer_too_slowly(
    asked: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(stall_s=2.0, least_rate=1e9) as (server, app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
        writer.write(asked)
        # It reads all the time, so that the kernel sees no reason to end it.
        while not app.cuts:
            await reader.read(4096)
            await asyncio.sleep(0.01)
        assert "takes its answer too slowly, and is cut with" in caplog.text
        writer.close()
        while len(server.connections):
            await asyncio.sleep(0.01)


async def test_what_clients_do_not_take_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async with served(most_unread=2**24) as (server, app, port):

        async def ask() -> asyncio.StreamWriter:
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
            writer.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
            return writer

        clients = [await ask() for _ in range(2)]
        await app.stopped.wait()
        assert app.cuts >= 1
        assert "all clients together have left more than 16777216 bytes" in caplog.text
        for each in clients:
            each.close()
        while len(server.connections):
            await asyncio.sleep(0.01)


async def test_the_next_request_waits_until_the_last_answer_is_taken() -> None:
    async with served() as (server, app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
        writer.write(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n" * 100)
        # The kernel takes some.
        begun = -1
        while begun != app.begun or not begun:
            begun = app.begun
            await rounds()
        assert begun < 50
        [connection] = server.server_state.connections
        assert connection.unread < 2_000_000
        came = 0
        while came < 100_000_000:
            came += len(await reader.read(2**20))
        assert app.begun == 100
        writer.close()


async def test_an_idle_connection_whose_client_still_reads_is_not_closed() -> None:
    async with served(idle_s=0.1) as (server, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        writer.write(LARGE)
        await reader.readuntil(b"\r\n\r\n")
        await swept_after(server.connections, 0.5)
        assert server.connections.timed_out == 0
        assert len(await ended(reader)) >= 20_000_000


async def test_the_oldest_without_a_request_makes_room() -> None:
    async with served(max_connections=4) as (server, _, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        while len(server.connections) < 4:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n0123456789")
        await reader.readuntil(b"0123456789")
        assert len(server.connections) <= 4
        assert server.connections.evicted >= 9
        assert await ended(silent[0][0]) == b""


async def test_one_with_a_request_is_not_closed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_YOUNG_S", 0.0)
    async with served(max_connections=2) as (server, _, port):
        busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in busy:
            writer.write(HEAD + b"\r\n")
        waiting, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(HEAD + b"\r\n0123456789")
        tried = []
        make_room = server.connections.make_room
        monkeypatch.setattr(server.connections, "make_room", lambda n: tried.append(n) or make_room(n))
        await until(lambda: len(tried) >= 2)
        for reader, writer in busy:
            writer.write(b"0123456789")
            await reader.readuntil(b"0123456789")
        # They have none now: one of them makes room.
        await waiting.readuntil(b"0123456789")


UNREADABLE = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "two lengths": b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "no host": b"GET /echo HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /echo HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "a length and chunks": HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space after a name": b"GET /echo HTTP/1.1\r\nhost : a\r\n\r\n",
    "a head without an end": b"GET /echo HTTP/1.1\r\nhost: a\r\nx: " + b"x" * 70_000,
    "a chunk without a length": HEAD.replace(b"content-length: 10", b"transfer-encoding: chunked")
    + b"\r\nzz\r\n",
}


@pytest.mark.parametrize("said", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_what_cannot_be_read_is_reported_in_the_words_of_every_error(said: bytes) -> None:
    async with served() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        head, _, body = (await ended(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n")
        error = json.loads(body)["error"]
        assert error == {
            "message": "the request is not valid HTTP/1.1",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_http",
        }
        writer.close()


async def test_who_sends_on_what_cannot_be_read_still_gets_the_answer() -> None:
    """Closed with something unread, the kernel would reset the connection, and the answer be lost."""
    async with served() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /" + b"a" * 8_000_000)
        await writer.drain()
        answer = await ended(reader)
        assert answer.startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_requests_in_a_row_on_one_connection() -> None:
    async with served(head_s=0.1) as (_, _, port):
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, (HEAD + b"\r\n0123456789") * 3)
            got, until = b"", time.monotonic() + PATIENCE
            while got.count(b"0123456789") < 3:
                assert time.monotonic() < until
                got += await loop.sock_recv(client, 65_536)


async def test_a_listener_that_cannot_accept_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with bind("127.0.0.1", 0) as bound:
        server = WebServer(App())
        serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        async with asyncio.timeout(PATIENCE):
            while not caplog.records:
                await asyncio.sleep(0.01)
            await rounds()
            server.should_exit = True
            await serving
    assert [record.message for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == [
        "No connection can be taken any more: [Errno 22] Invalid argument"
    ]
