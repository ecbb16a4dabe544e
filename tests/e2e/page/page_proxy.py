"""A proxy between a browser and a server: tests of the page have it answer in the server's place, or fail."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

CHAT = "/v1/chat/completions"
# The proxy's and the server's connections have them of their own.
_HOP = {"connection", "content-length", "content-encoding", "transfer-encoding", "host", "keep-alive"}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reported(status: int, message: str, *, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    """The server's error object."""
    body = {"error": {"message": message, "type": "error", "param": None, "code": None, **fields}}
    return answered(status, json.dumps(body), "application/json", headers)


def answered(
    status: int, body: str, kind: str = "text/html", headers: dict[str, str] | None = None
) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, content_type=kind, headers=headers)

    return answer


def says(
    *deltas: dict[str, Any] | str,
    finish: str = "stop",
    cut: bool = False,
    pause: float = 0,
    until: threading.Event | None = None,
) -> Answer:
    """A streamed answer of these deltas; a text is one of ``content``.

    Args:
        deltas: Of the only choice.
        finish: Its ``finish_reason``.
        cut: True if the connection ends after the last delta, as if a cable were pulled.
        pause: Seconds before each delta.
        until: The last delta waits for it.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)

        async def send(delta: dict[str, Any], finish_reason: str | None = None) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())

        for number, delta in enumerate(deltas, 1):
            await asyncio.sleep(pause)
            if until is not None and number == len(deltas):
                await asyncio.to_thread(until.wait, 120)
            await send({"content": delta} if isinstance(delta, str) else delta)
        if cut:
            # A browser drops what came with the end of a broken connection.
            await asyncio.sleep(0.5)
            assert request.transport is not None
            request.transport.close()
            return response
        await send({}, finish)
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer


@dataclass
class Proxy:
    """
    Attributes:
        upstream: The server's base URL.
        prefix: The path below which it serves.
        answers: What the next requests for an answer get in the server's place, first come, first served.
        asked: The bodies of the requests for answers so far.
        model: Fields that replace those of ``/get_model_info``.
        key: If set, the key without which the server is not reached.
    """

    upstream: str
    prefix: str = ""
    answers: list[Answer] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    base_url: str = ""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __enter__(self) -> Proxy:
        started = threading.Event()

        async def start() -> None:
            app = web.Application(client_max_size=2**27)
            app.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}{self.prefix}/"
            self._runner = runner
            self._session = aiohttp.ClientSession(auto_decompress=False)
            started.set()

        def run() -> None:
            self._loop.run_until_complete(start())
            self._loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        async def end() -> None:
            await self._session.close()
            await self._runner.cleanup()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix(self.prefix)
        if not request.path.startswith(f"{self.prefix}/"):
            return web.Response(status=404, text="beyond the prefix")
        is_page = path == "/" or path.startswith("/page/")
        shown = request.headers.get("authorization")
        if self.key is not None and not is_page and shown != f"Bearer {self.key}":
            return await reported(401, "no key", code="invalid_api_key")(request)
        body = await request.read()
        if path == CHAT:
            self.asked.append(json.loads(body))
            if self.answers:
                return await self.answers.pop(0)(request)
        return await self._forward(request, path, body)

    async def _forward(self, request: web.Request, path: str, body: bytes) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        # As a proxy of the server's own origin would.
        headers.pop("origin", None)
        async with self._session.request(
            request.method, self.upstream + path, headers=headers, data=body
        ) as upstream:
            if path == "/get_model_info" and self.model:
                return web.json_response(await upstream.json() | self.model)
            response = web.StreamResponse(status=upstream.status)
            for name, value in upstream.headers.items():
                if name.lower() not in _HOP:
                    response.headers.add(name, value)
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            return response
