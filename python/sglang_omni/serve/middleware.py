"""What stands before every route: the limit on bodies, and the counting of requests."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_omni.serve.errors import CLIENT_CLOSED_REQUEST, error_body
from sglang_omni.serve.metrics import Metrics


class _TooLarge(Exception):
    pass


class BodyLimit:
    """Refuses bodies over ``max_bytes``: at once where their length is told, else as soon as they pass it."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Request(scope).headers.get("content-length", "")
        if length.isdigit() and int(length) > self.max_bytes:
            await self._refuse(scope, receive, send)
            return
        received = 0
        started = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self.max_bytes:
                    raise _TooLarge
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, counted, watched)
        except _TooLarge:
            if started:
                raise
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"the body is over the limit of {self.max_bytes} bytes (--max-body-size)"
        # The rest of the body is not read, so the connection cannot be used again.
        response = JSONResponse(
            error_body(message, 413, kind="request_too_large"),
            status_code=413,
            headers={"connection": "close"},
        )
        await response(scope, receive, send)


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

        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, watched)
        finally:
            self.metrics.in_flight -= 1
            # Labels are routes, never what callers make up.
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self.metrics.request_done(path, status, time.monotonic() - started)
