"""WebSockets on the server: keys, origins, refusals, limits, metrics, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import WebSocket
from scripted_pipeline import ScriptedPipeline
from sweeps import swept_after
from waiting import PATIENCE
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sglang_omni.client import Client, RequestError
from sglang_omni.serve import create_app
from sglang_omni.serve.front.access import Access
from sglang_omni.serve.front.session import owner_of
from sglang_omni.serve.front.websockets import chosen_subprotocol
from sglang_omni.serve.launch import web_server
from sglang_omni.serve.launch.connections import ConnectionLimits
from sglang_omni.serve.launch.web_server import WebServer
from sglang_omni.supervision.ports import bind

KEY = "client-key"


class Served:
    def __init__(self, server: WebServer, app: Any, port: int) -> None:
        self.server, self.app, self.port = server, app, port
        self.held: list[Any] = []

    def open(self, path: str = "/echo", **options: Any) -> connect:
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, **options)

    async def refusal(self, path: str = "/echo", **options: Any) -> tuple[int, str, httpx.Headers]:
        with pytest.raises(InvalidStatus) as refused:
            await self.open(path, **options)
        answer = refused.value.response
        assert answer.headers["content-type"] == "application/json"
        error = json.loads(answer.body or b"")["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return answer.status_code, error["code"], httpx.Headers(list(answer.headers.raw_items()))

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await http.get(f"http://127.0.0.1:{self.port}{path}")

    async def has_open(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.app.state.server.websockets) != count:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def served(limits: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Served]:
    """The API as a replica serves it, with a WebSocket that echoes."""
    app = create_app(Client(ScriptedPipeline()), **options)

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        if "refuse" in websocket.query_params:
            raise RequestError("not today", param="model", code="model_not_found", status=404)
        await websocket.accept(chosen_subprotocol(websocket.scope, "realtime"))
        if "fail" in websocket.query_params:
            raise RequestError("too late")
        await websocket.send_text(str(owner_of(websocket)))
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        server = WebServer(app, ConnectionLimits(**limits or {}))
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        async with asyncio.timeout(PATIENCE):
            yield Served(server, app, listener.getsockname()[1])
            server.should_exit = True
            await serving


async def test_messages_go_both_ways_and_are_counted() -> None:
    async with served() as server:
        async with server.open(additional_headers={"x-request-id": "my-id"}) as socket:
            assert socket.response is not None
            assert socket.response.headers["x-request-id"] == "my-id"
            assert "sec-websocket-extensions" not in socket.response.headers
            await socket.recv()
            for text in ("hello", "x" * 1_000_000):
                await socket.send(text)
                assert await socket.recv() == text
            assert "sglang_omni_websockets_open 1.0" in (await server.get("/metrics")).text
        await server.has_open(0)
        assert not len(server.server.connections)
        page = (await server.get("/metrics")).text
        assert "sglang_omni_websockets_open 0.0" in page
        assert 'sglang_omni_websockets_total{path="/echo",status="101"} 1.0' in page


async def test_refusals_are_errors_before_the_upgrade(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as server:
        status, code, headers = await server.refusal("/echo?refuse=1")
        assert (status, code) == (404, "model_not_found")
        assert headers["x-request-id"]
        for path in ("/nothing", "/v1/models"):
            assert (await server.refusal(path))[:2] == (404, "unknown_url")
        page = (await server.get("/metrics")).text
        assert 'sglang_omni_websockets_total{path="/echo",status="404"} 1.0' in page
        assert 'sglang_omni_websockets_total{path="other",status="404"} 2.0' in page
        assert not len(server.app.state.server.websockets)
    assert not [
        record for record in caplog.records if record.name == "uvicorn.error" and record.levelno >= 40
    ]


async def test_a_route_that_fails_later_closes_it() -> None:
    async with served() as server, server.open("/echo?fail=1") as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011


async def test_keys_come_in_a_header_or_a_subprotocol() -> None:
    async with served(access=Access(api_keys=(KEY,))) as server:
        for headers in ({}, {"authorization": "Bearer other"}):
            status, code, answered = await server.refusal(additional_headers=headers)
            assert (status, code) == (401, "invalid_api_key")
            assert answered["www-authenticate"] == "Bearer"
        wrong = ["realtime", "openai-insecure-api-key.other"]
        assert (await server.refusal(subprotocols=wrong))[0] == 401
        owners = set()
        async with server.open(additional_headers={"authorization": f"Bearer {KEY}"}) as socket:
            owners.add(await socket.recv())
        # A page elsewhere that knows a key may ask.
        async with server.open(
            subprotocols=["realtime", f"openai-insecure-api-key.{KEY}"], origin="http://evil.example"
        ) as socket:
            assert socket.subprotocol == "realtime"
            owners.add(await socket.recv())
        assert len(owners) == 1
        assert "None" not in owners


async def test_pages_of_other_origins_are_refused_without_a_key() -> None:
    async with served() as server:
        assert (await server.refusal(origin="http://evil.example"))[:2] == (403, "cross_site_request")
        async with server.open(origin=f"http://127.0.0.1:{server.port}") as socket:
            assert await socket.recv() == "None"


async def test_a_message_that_is_too_large_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "_MAX_MESSAGE_BYTES", 1000)
    async with served() as server, server.open() as socket:
        await socket.recv()
        await socket.send("x" * 1000)
        assert len(await socket.recv()) == 1000
        await socket.send("x" * 1001)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_no_sweep_ends_one() -> None:
    limits = {"head_s": 0.1, "idle_s": 0.1, "stall_s": 1.0, "sweep_s": 0.02}
    async with served(limits) as server, server.open() as socket:
        await socket.recv()
        await swept_after(server.server.connections, 0.5)
        await socket.send("still here")
        assert await socket.recv() == "still here"
        assert not server.server.connections.timed_out


async def test_one_that_answers_no_ping_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "_PING_S", 0.2)
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"GET /echo HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert b"101" in await reader.readline()
        while await reader.read(65536):
            pass
        await server.has_open(0)
        assert not len(server.server.connections)
        writer.close()


async def test_the_server_closes_them_when_it_stops() -> None:
    async with served() as server:
        socket: ClientConnection = await server.open()
        await socket.recv()
        server.server.should_exit = True
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


async def test_while_it_drains_open_ones_go_on_and_nothing_new_is_taken() -> None:
    async with served() as server, server.open() as socket:
        await socket.recv()
        state = server.app.state.server
        state.admission.closed = "the server is shutting down"
        assert (await server.refusal())[:2] == (503, "service_unavailable")
        health = await server.get("/health")
        assert (health.status_code, health.json()["error"]) == (503, "the server is shutting down")
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.post(f"http://127.0.0.1:{server.port}/v1/completions", json={"prompt": "hi"})
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        ending = asyncio.ensure_future(state.websockets.ended())
        await socket.send("still here")
        assert await socket.recv() == "still here"
        assert not ending.done()
        await socket.close()
        await ending
