"""The middleware in front of every route: it checks keys and sizes, admits requests and counts them."""

from __future__ import annotations

import time
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_omni.proto import Unavailable
from sglang_omni.serve.front.admission import Admission, Permit
from sglang_omni.serve.front.auth import Guard
from sglang_omni.serve.front.errors import CLIENT_CLOSED_REQUEST, error_response
from sglang_omni.serve.front.request_ids import HttpAnswer
from sglang_omni.serve.front.warnings import collected, warning_headers
from sglang_omni.serve.front.websockets import SWITCHING_PROTOCOLS, OpenWebSockets, WebSockets
from sglang_omni.serve.metrics import Metrics

# Bytes of a refused body that are read.
_MOST_DROPPED = 2**30
# Bytes of each body that do not count towards the limit on all: large ones must not keep small ones out.
UNCOUNTED = 65_536
# Paths that begin so: administration and cancelling have to reach a server that is full.
_WITHOUT_PERMIT = ("/abort_request", "/flush_cache", "/start_profile", "/stop_profile", "/v1/responses/")


class AdmissionMiddleware:
    """Takes requests in, and counts their answers.

    A request that ``guard`` does not allow is refused. So is a body over ``max_body_size``: at once if its
    length is declared, else once it exceeds that. A POST waits for a permit once its body is complete, and
    keeps it until its answer is computed; if the queue is full, it is refused and its body dropped. The body
    of a waiting request is not parsed yet.

    Requests are counted by route and status, with the time until the end of their answers. WebSockets are
    counted apart, and not timed: how long one is open says nothing of the server.

    One object wraps what a request receives and sends, as both are called for each part of a stream.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        guard: Guard,
        admission: Admission,
        metrics: Metrics,
        max_body_size: int,
        websockets: OpenWebSockets,
    ) -> None:
        self.app = app
        self.websockets = WebSockets(app, admission=admission, metrics=metrics, are_open=websockets)
        self.guard = guard
        self.admission = admission
        self.metrics = metrics
        self.max_body_size = max_body_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._count(
                scope, AdmittedRequest(self.admission, self.metrics, self.max_body_size, receive, send)
            )
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _count(self, scope: Scope, request: AdmittedRequest) -> None:
        started = time.monotonic()
        self.metrics.request_begins()
        try:
            await self._answer(scope, request)
        finally:
            request.end()
            state = scope.get("state", {})
            path, seconds = _path(scope), time.monotonic() - started
            self.metrics.request_done(path, request.status, seconds, state.get("tenant"))
            if (name := state.get("request_name")) is not None:
                name.answer = HttpAnswer(scope["method"], path, request.status, seconds)

    async def _answer(self, scope: Scope, request: AdmittedRequest) -> None:
        if (refusal := self.guard.refusal(scope)) is not None:
            await refusal(scope, request.read, request.send)
            return
        length = Request(scope).headers.get("content-length", "")
        if length.isdigit() and int(length) > self.max_body_size:
            await self._refuse(request.too_large, scope, request)
            return
        if scope["method"] == "POST" and not scope["path"].startswith(_WITHOUT_PERMIT):
            try:
                await self.admission.check(int(length) if length.isdigit() else None)
            except (Unavailable, HTTPException) as exc:
                await self._refuse(exc, scope, request)
                return
            request.needs_permit = True
            scope.setdefault("state", {})["admitted"] = request
        with collected() as request.warnings:
            await self.app(scope, request.receive, request.send)

    async def _refuse(self, error: Exception, scope: Scope, request: AdmittedRequest) -> None:
        await _drop_body(request.read)
        await error_response(error)(scope, request.read, request.send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = CLIENT_CLOSED_REQUEST

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.http.response.start":
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = SWITCHING_PROTOCOLS
            await send(message)

        try:
            if (refusal := self.guard.refusal(scope)) is not None:
                await refusal(scope, receive, watched)
            else:
                await self.websockets(scope, receive, watched)
        finally:
            self.metrics.websocket_done(_path(scope), status)


class AdmittedRequest:
    """One HTTP request's way in and out. Routes find it in ``request.state.admitted`` if it has a permit.

    Attributes:
        status: Of its answer, once that has begun.
        warnings: What its answer warns of.
        needs_permit: True if it is to wait for a permit.
        too_large: The error of a body that is over the limit.
    """

    def __init__(
        self, admission: Admission, metrics: Metrics, max_body_size: int, receive: Receive, send: Send
    ) -> None:
        self.status = CLIENT_CLOSED_REQUEST
        self.warnings: dict[str, None] = {}
        self.needs_permit = False
        self.too_large = HTTPException(
            413, f"the body is over the limit of {max_body_size} bytes (--max-body-size)"
        )
        self._admission = admission
        self._metrics = metrics
        self._max_body_size = max_body_size
        self._receive = receive
        self._send = send
        self._received = self._held = 0
        self._is_unread = True
        self._permit: Permit | None = None

    async def read(self) -> Message:
        """Receives a message.

        Raises:
            HTTPException: 413: the body is over the limit.
        """
        message = await self._receive()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            self._is_unread = message.get("more_body", False)
            if self._received > self._max_body_size:
                raise self.too_large
        return message

    async def receive(self) -> Message:
        """Receives a message; the last of a body waits for the permit."""
        message = await self.read()
        if not self.needs_permit or message["type"] != "http.request":
            return message
        more = max(0, self._received - UNCOUNTED) - self._held
        await self._admission.hold_bytes(more)
        self._held += more
        if not self._is_unread:
            self.needs_permit = False
            began = time.monotonic()
            self._permit = await self._admission.acquire(self._receive)
            if self._permit is None:
                return {"type": "http.disconnect"}
            self._metrics.queued(time.monotonic() - began)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._received > self._max_body_size and self._is_unread:
                await _drop_body(self._receive)
            if self.warnings:
                headers = [*message.get("headers", ()), *warning_headers(self.warnings)]
                message = {**message, "headers": headers}
        await self._send(message)

    def widen(self, parts: int) -> None:
        """Have the request's permit stand for ``parts`` requests of the pipeline."""
        if self._permit is not None:
            self._admission.widen(self._permit, parts)

    def end(self) -> None:
        self._admission.release_bytes(self._held)
        if self._permit is not None:
            self._admission.release(self._permit)


async def _drop_body(receive: Receive) -> None:
    """Read the rest of a refused body: callers look for the answer only after they have sent everything."""
    dropped = 0
    with suppress(HTTPException):  # over the limit on bodies, which matters no more
        while dropped < _MOST_DROPPED:
            message = await receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                return
            dropped += len(message.get("body", b""))


def _path(scope: Scope) -> str:
    """The path of the route: callers must not make up a metric's labels."""
    return getattr(scope.get("route"), "path", "other")
