"""Ids of the requests under way: gives them out, and finds the requests that a caller names."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_omni.generation.request_id import HEADER, is_usable, new_request_id
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.websockets import SWITCHING_PROTOCOLS

logger = logging.getLogger(__name__)

# By precedence. The second is OpenAI's header for ids that callers choose.
_HEADERS = (HEADER, "x-client-request-id")
# Prefixes of the id in answers.
_PREFIXES = ("chatcmpl-", "cmpl-", "audio-")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """How a request was answered: its method, the path of its route, its status, and the seconds it took."""

    method: str
    path: str
    status: int
    seconds: float


@dataclass(eq=False)
class RequestName:
    """The names of one HTTP request.

    Attributes:
        id: The id in its answer and in logs.
        called: The id in its header; without one, ``id``.
        parts: The ids of its requests in the pipeline; empty while there are none.
        owner: The request's owner. Owners do not see each other's ids.
        arrived: When its head came, by ``time.monotonic``.
        answer: How it was answered; None before the end of its answer.
    """

    id: str
    called: str
    parts: list[str] = field(default_factory=list)
    owner: str | None = None
    arrived: float = field(default_factory=time.monotonic)
    answer: HttpAnswer | None = None

    def __str__(self) -> str:
        return self.id if self.id == self.called else f"{self.id} ({HEADER}: {self.called})"


class RunningRequests:
    """The names of the requests that run in the pipeline, by owner."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str | None, str], list[RequestName]] = {}

    async def admit(self, name: RequestName, chosen: str | None) -> str:
        """Register a request that is about to run, and return its id.

        Several requests may have the same id in their headers, since services pass on the ids of their own
        requests; the second then gets a suffix. An id in a body must be unique.

        Args:
            name: The request's names; ``id`` and ``parts`` are set.
            chosen: The id in its body.

        Raises:
            RequestError: ``chosen`` is the id of another running request of this owner, which goes on.
        """
        if chosen is not None and self._is_taken(name.owner, chosen):
            raise _running_already(chosen)
        name.id = chosen or name.called
        while self._is_taken(name.owner, name.id):
            name.id = f"{name.called}-{uuid4().hex[:8]}"
        name.parts = [name.id]
        self._enter(name)
        return name.id

    async def split(self, name: RequestName, count: int) -> Sequence[str]:
        """The ids for ``count`` parts of a running request: its own if there is one part, else numbered."""
        if count > 1:
            self.leave(name)
            prefix = name.id
            while any(self._is_taken(name.owner, f"{prefix}-{index}") for index in range(count)):
                prefix = f"{name.id}-{uuid4().hex[:8]}"
            name.parts = [f"{prefix}-{index}" for index in range(count)]
            self._enter(name)
        return name.parts

    async def rename_parts(self, name: RequestName, parts: Sequence[str]) -> Sequence[str]:
        """Give the parts of a running request ids of the caller's.

        Raises:
            RequestError: One is the id of another running request of this owner.
        """
        self.leave(name)
        name.parts = [name.id]
        try:
            for part in parts:
                if self._is_taken(name.owner, part):
                    raise _running_already(part)
            name.parts = list(parts)
        finally:
            self._enter(name)
        return name.parts

    def name_of(self, request_id: str, owner: str | None) -> RequestName | None:
        """The names of the running HTTP request with this id in the pipeline."""
        names = self._by_name.get((owner, request_id), ())
        return next((name for name in names if request_id in name.parts), None)

    def leave(self, name: RequestName) -> None:
        """Forget a request that has ended, or was never admitted."""
        for each in _names(name):
            same = self._by_name.get((name.owner, each), [])
            if name in same:
                same.remove(name)
                if not same:
                    del self._by_name[name.owner, each]

    def meant_by(self, text: str, owner: str | None) -> list[str]:
        """The ids in the pipeline of the owner's requests that a name stands for.

        Args:
            text: An id, bare or with the prefix it has in an answer. Several requests may have it in their
                headers. An unknown id is returned itself: the pipeline may know it.
            owner: The caller, who sees no other owner's requests.
        """
        for each in (text, bare_id(text)):
            if names := self._by_name.get((owner, each)):
                return [part for name in names for part in ([each] if each in name.parts else name.parts)]
        return [text]

    def _enter(self, name: RequestName) -> None:
        for each in _names(name):
            self._by_name.setdefault((name.owner, each), []).append(name)

    def _is_taken(self, owner: str | None, request_id: str) -> bool:
        names = self._by_name.get((owner, request_id), ())
        return any(request_id == name.id or request_id in name.parts for name in names)


def _running_already(request_id: str) -> RequestError:
    return RequestError(
        f"request_id: request {request_id!r} is running already; use another id, or none",
        param="request_id",
        code="duplicate_request_id",
        status=409,
    )


def bare_id(text: str) -> str:
    """An id without the prefix that it has in an answer."""
    return next((text.removeprefix(prefix) for prefix in _PREFIXES if text.startswith(prefix)), text)


def _names(name: RequestName) -> set[str]:
    return {name.id, name.called, *name.parts}


class RequestIds:
    """Gives every request an id, returns it in every answer, and logs requests that were refused or failed.

    Routes find the names in ``request.state.request_name`` and the id in ``request.state.request_id``.
    """

    def __init__(self, app: ASGIApp, *, running: RunningRequests) -> None:
        self.app = app
        self.running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        called = _called(Headers(scope=scope))
        name = RequestName(called, called)
        state = scope.setdefault("state", {})
        state["request_name"], state["request_id"] = name, name.id
        started = time.monotonic()
        status = 0

        async def named(message: Message) -> None:
            nonlocal status
            if answer := _answered_with(message):
                status = answer
                message.setdefault("headers", [])
                MutableHeaders(scope=message)[HEADER] = name.id
            await send(message)

        try:
            await self.app(scope, receive, named)
        finally:
            self.running.leave(name)
            # An unexpected failure is answered, and logged with its traceback, further out.
            if status:
                logger.log(
                    logging.INFO if status >= 400 else logging.DEBUG,
                    "Request %s: %s %s was answered with %d within %.3f s",
                    name,
                    scope.get("method", "WebSocket"),
                    quote(scope["path"]),  # or a path could forge lines of the log
                    status,
                    time.monotonic() - started,
                )


def _answered_with(message: Message) -> int | None:
    """The status of the answer that a message begins; None if it begins none."""
    if message["type"] in ("http.response.start", "websocket.http.response.start"):
        return int(message["status"])
    return SWITCHING_PROTOCOLS if message["type"] == "websocket.accept" else None


def _called(headers: Headers) -> str:
    """The id in the caller's headers, or a new one."""
    given = (headers.get(header, "") for header in _HEADERS)
    return next(filter(is_usable, given), None) or new_request_id()
