"""The server under load: one pool of connections, streams of events, and failures by kind."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from sglang_omni.bench.outcome import CallFailed

# A server may say a lot; a failure's message is a line of a report.
_LONGEST_MESSAGE = 300
# The largest piece of a stream that is waited for: a whole spoken answer in one event.
_LARGEST_PIECE = 64 * 2**20


class Target:
    """
    Args:
        url: The server, with or without ``/v1`` at its end.
        api_key: Shown to the server; None for none.
        timeout_s: The most seconds for one answer, or for one turn of a session.
    """

    def __init__(self, url: str, api_key: str | None, timeout_s: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.timeout_s = timeout_s

    async def __aenter__(self) -> Target:
        self._http = aiohttp.ClientSession(
            # The load sets how many run at once. A name is looked up once: a run is no test of DNS.
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=None),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            read_bufsize=_LARGEST_PIECE // 2,
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def models(self) -> list[str]:
        """The ids of the models that are served."""
        async with self._called("GET", "/v1/models") as answer:
            try:
                return [str(model["id"]) for model in (await answer.json())["data"]]
            except (ValueError, KeyError, TypeError, aiohttp.ContentTypeError) as exc:
                raise CallFailed("bad answer", f"{self.url}/v1/models lists no models") from exc

    async def post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer's JSON object."""
        async with self._called("POST", path, json=body) as answer:
            return await _object(answer)

    async def post_form(self, path: str, form: aiohttp.FormData) -> dict[str, Any]:
        """The answer's JSON object, to a multipart form."""
        async with self._called("POST", path, data=form) as answer:
            return await _object(answer)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[tuple[float, dict[str, Any]]]:
        """The server-sent events of the answer, each with the time at which it came.

        Raises:
            CallFailed: It is refused, an event is an error, or the stream breaks off before ``[DONE]``.
        """
        async with self._called("POST", path, json=body) as answer:
            rest = b""
            async for piece in answer.content.iter_any():
                now = time.perf_counter()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    event = json.loads(data)
                    if event.get("error"):
                        raise CallFailed("error event", _said(event))
                    yield now, event
        raise CallFailed("cut stream", "it ended without [DONE]")

    @asynccontextmanager
    async def sound(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, whose body is sound."""
        async with self._called("POST", path, json=body) as answer:
            yield answer

    @asynccontextmanager
    async def session(self, path: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket."""
        with _failures():
            async with self._http.ws_connect(
                self.url + path, max_msg_size=_LARGEST_PIECE, heartbeat=None
            ) as socket:
                yield socket

    @asynccontextmanager
    async def _called(self, method: str, path: str, **content: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        with _failures():
            async with self._http.request(method, self.url + path, **content) as answer:
                if answer.status >= 400:
                    raise CallFailed(f"HTTP {answer.status}", _refusal(await answer.read()))
                yield answer


class _failures:
    """Turns what the HTTP library raises into a `CallFailed`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, aiohttp.WSServerHandshakeError):
            raise CallFailed(f"HTTP {exc.status}", "the server opens no WebSocket there") from exc
        if isinstance(exc, aiohttp.ClientConnectorError):
            raise CallFailed("no connection", exc.strerror or str(exc.os_error)) from exc
        if isinstance(exc, TimeoutError):
            raise CallFailed("timeout", "no end of the answer within --timeout") from exc
        if isinstance(exc, (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionError)):
            raise CallFailed("cut stream", "the server closed the connection") from exc
        if isinstance(exc, aiohttp.InvalidURL):
            raise CallFailed("bad URL", str(exc)) from exc
        if isinstance(exc, (aiohttp.ClientError, json.JSONDecodeError)):
            raise CallFailed(type(exc).__name__, str(exc)) from exc


async def _object(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    content = json.loads(await answer.read())
    if not isinstance(content, dict):
        raise CallFailed("bad answer", "its JSON is no object")
    return content


def _refusal(body: bytes) -> str:
    try:
        return _said(json.loads(body))
    except ValueError:
        return body.decode(errors="replace").strip()[:_LONGEST_MESSAGE]


def _said(answer: Any) -> str:
    """The message of OpenAI's error object, or of other servers' like it."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return str(message)[:_LONGEST_MESSAGE]
