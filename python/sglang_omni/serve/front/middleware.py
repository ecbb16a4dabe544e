"""Middleware in front of every route: the limit on bodies, the places of requests, and their counting."""

from __future__ import annotations

import time
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_omni.proto import Unavailable
from sglang_omni.serve.front.admission import Admission, Permit
from sglang_omni.serve.front.errors import CLIENT_CLOSED_REQUEST, error_response
from sglang_omni.serve.front.request_ids import HttpAnswer
from sglang_omni.serve.front.websockets import answered_with
from sglang_omni.serve.metrics import Metrics

# Bytes of a refused body that are read.
_MOST_DROPPED = 2**30
# Bytes of each body that do not count towards the limit on all: large ones must not keep small ones out.
_UNCOUNTED = 65_536
# Paths that begin so: administration and cancelling have to reach a server that is full.
_WITHOUT_PLACE = ("/abort_request", "/flush_cache", "/start_profile", "/stop_profile", "/v1/responses/")


class BodyLimit:
    """Refuses bodies over ``max_bytes``: at once if their length is declared, else once they exceed it."""

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
            await error_response(HTTPException(413, self._refusal))(scope, receive, send)
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


class AdmissionMiddleware:
    """Has each request wait for a permit once its body is complete, and keep it until its answer is computed.

    If the queue is full, a request is refused and its body dropped. The body of a waiting request is not
    parsed yet.
    """

    def __init__(self, app: ASGIApp, *, admission: Admission, metrics: Metrics) -> None:
        self.app = app
        self.admission = admission
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        if not is_post or scope["path"].startswith(_WITHOUT_PLACE):
            await self.app(scope, receive, send)
            return
        if self.admission.closed or self.admission.is_full:
            refusal: Exception = (
                Unavailable(self.admission.closed)
                if self.admission.closed
                else self.admission.refusal("queue_full")
            )
            await _drop_body(receive)
            await error_response(refusal)(scope, receive, send)
            return
        admitted = AdmittedRequest(self.admission, self.metrics, receive)
        scope.setdefault("state", {})["admitted"] = admitted
        try:
            await self.app(scope, admitted.receive, send)
        finally:
            admitted.end()


class AdmittedRequest:
    """One request's way through the gate. Routes find it in ``request.state.admitted``."""

    def __init__(self, admission: Admission, metrics: Metrics, receive: Receive) -> None:
        self._admission = admission
        self._metrics = metrics
        self._receive = receive
        self._received = self._held = 0
        self._has_entered = False
        self._permit: Permit | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        if self._has_entered or message["type"] != "http.request":
            return message
        self._received += len(message.get("body", b""))
        more = max(0, self._received - _UNCOUNTED) - self._held
        self._admission.hold_bytes(more)
        self._held += more
        if not message.get("more_body", False):
            self._has_entered = True
            began = time.monotonic()
            self._permit = await self._admission.acquire(self._receive)
            if self._permit is None:
                return {"type": "http.disconnect"}
            self._metrics.request_queue_time.observe(time.monotonic() - began)
        return message

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


class Count:
    """Counts requests by route and status, and the time until the end of their answers.

    WebSockets are counted apart, and not timed: how long one is open says nothing of the server.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        status = CLIENT_CLOSED_REQUEST
        started = time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            status = answered_with(message) or status
            await send(message)

        if scope["type"] == "websocket":
            try:
                await self.app(scope, receive, watched)
            finally:
                self.metrics.websocket_done(_path(scope), status)
            return
        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, watched)
        finally:
            self.metrics.in_flight.dec()
            state = scope.get("state", {})
            path, seconds = _path(scope), time.monotonic() - started
            self.metrics.request_done(path, status, seconds, state.get("tenant"))
            if (name := state.get("request_name")) is not None:
                name.answer = HttpAnswer(scope["method"], path, status, seconds)


def _path(scope: Scope) -> str:
    """The path of the route: callers must not make up a metric's labels."""
    return getattr(scope.get("route"), "path", "other")
