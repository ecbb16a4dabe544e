"""What stands before every route: the limit on bodies, and the counting of requests."""

from __future__ import annotations

import time

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_omni.serve.api.errors import CLIENT_CLOSED_REQUEST, error_body
from sglang_omni.serve.api.metrics import Metrics

# Of a body that is refused, this much is read and dropped: callers look for the answer only after they
# have sent everything.
_MOST_DROPPED = 2**30


class BodyLimit:
    """Refuses bodies over ``max_bytes``: at once where their length is told, else as soon as they pass it."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self._refusal = f"the body is over the limit of {max_bytes} bytes (--max-body-size)"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Request(scope).headers.get("content-length", "")
        if length.isdigit() and int(length) > self.max_bytes:
            await _drop_body(receive)
            body = error_body(self._refusal, 413, code="request_too_large")
            await JSONResponse(body, status_code=413)(scope, receive, send)
            return
        received = 0
        unread = True

        async def counted() -> Message:
            nonlocal received, unread
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                unread = message.get("more_body", False)
                if received > self.max_bytes:
                    raise HTTPException(413, self._refusal)
            return message

        async def watched(message: Message) -> None:
            if received > self.max_bytes and unread and message["type"] == "http.response.start":
                await _drop_body(receive)
            await send(message)

        await self.app(scope, counted, watched)


async def _drop_body(receive: Receive) -> None:
    dropped = 0
    while dropped < _MOST_DROPPED:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        dropped += len(message.get("body", b""))


class Count:
    """Counts requests by route and status, and how long they took; a stream lasts until its end."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = CLIENT_CLOSED_REQUEST
        started = time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, watched)
        finally:
            self.metrics.in_flight.dec()
            # Labels are routes, never what callers make up.
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.request_done(path, status, time.monotonic() - started)
