"""Work that is cancelled if its caller leaves, and responses that are streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Generic, TypeVar
from uuid import uuid4

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sglang_omni.serve.front.errors import ClientDisconnected, describe, error_response

T = TypeVar("T")


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the caller leaves first.

    Args:
        receive: The request's channel; its body has been read.
        work: What it raises is raised here.

    Raises:
        ClientDisconnected: The caller left.
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        for each in (task, leaving):
            each.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class StreamedResponse(Response, Generic[T]):
    """A response whose body is sent piece by piece.

    Nothing is sent before the first piece, so that a request which fails earlier is answered with its proper
    status. A later failure ends the stream with ``failure(exc)``; if that is None, the connection is cut.

    Attributes:
        end: The bytes after the last piece.
    """

    end = b""

    def __init__(
        self,
        pieces: AsyncGenerator[T, None],
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        request_id: str,
    ) -> None:
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"
        self.headers["cache-control"] = "no-cache"
        self.pieces = pieces
        self.request_id = request_id

    def encode(self, piece: T) -> bytes:
        """A piece as bytes, which it is unless a subclass has others."""
        assert isinstance(piece, bytes)
        return piece

    def failure(self, exc: Exception) -> bytes | None:
        """The last piece of a stream that failed, if its format has one."""
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send(scope, receive, send))
        except ClientDisconnected:
            return

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, end = False, self.end
        async with aclosing(self.pieces) as pieces:
            try:
                async for piece in pieces:
                    body = self.encode(piece)
                    if not started:
                        started = True
                        await send(
                            {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                        )
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            except Exception as exc:
                if not started:
                    await error_response(exc, request_id=self.request_id)(scope, receive, send)
                    return
                last = self.failure(exc)
                if last is None:
                    raise
                end = last
        if not started:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": end, "more_body": False})


class EventStream(StreamedResponse[dict[str, Any] | bytes]):
    """JSON objects, or events that are written already, ended by ``[DONE]`` or by an error object."""

    def __init__(
        self, events: AsyncGenerator[dict[str, Any] | bytes, None], *, request_id: str, done: bool = True
    ) -> None:
        super().__init__(events, media_type="text/event-stream", request_id=request_id)
        if done:
            self.end = b"data: [DONE]\n\n"

    def encode(self, piece: dict[str, Any] | bytes) -> bytes:
        return piece if isinstance(piece, bytes) else event(piece)

    def failure(self, exc: Exception) -> bytes:
        _, body = describe(exc, request_id=self.request_id)
        return event(body)


# Common HTTP clients split text into lines at these characters, as Unicode does; server-sent events do not
# end there. So they are escaped, which JSON allows.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


# A value as JSON. `json.dumps` would make an encoder for each event.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def event(fields: dict[str, Any]) -> bytes:
    return _event(to_json(fields))


class EventTemplate:
    """Events that differ in a few values: the rest of them is written once.

    Args:
        fields: Those of every event, with ``HOLE`` in the place of each value that differs.
    """

    # No caller's text is this.
    HOLE = uuid4().hex

    def __init__(self, fields: dict[str, Any]) -> None:
        first, *self._between = to_json(fields).split(to_json(self.HOLE))
        self._first = first

    def event(self, *values: str) -> bytes:
        """An event with these values, as JSON, in the order of the holes."""
        text = self._first
        for value, rest in zip(values, self._between, strict=True):
            text += value + rest
        return _event(text)


def _event(text: str) -> bytes:
    if not text.isascii():  # known without scanning the text, which is long for speech
        text = text.translate(_LINE_ENDS)
    return f"data: {text}\n\n".encode()
