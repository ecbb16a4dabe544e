"""The ids of the requests under way: what each is called, and which ones a caller means by a name."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_omni.client import RequestError
from sglang_omni.client.request_id import HEADER, is_usable, new_request_id

logger = logging.getLogger(__name__)

# In the order in which they count. The second is OpenAI's, for ids that its callers choose.
_HEADERS = (HEADER, "x-client-request-id")
# What stands before the id in answers.
_PREFIXES = ("chatcmpl-", "cmpl-", "audio-")


@dataclass(eq=False)
class RequestName:
    """What one HTTP request is called.

    Attributes:
        id: The one id that answers and logs show.
        called: What its header called it, or ``id`` if it did not.
        parts: The ids of what runs for it in the pipeline; none before that, or if nothing does.
        owner: Whose request it is. Names are those of one owner, and others know nothing of them.
    """

    id: str
    called: str
    parts: list[str] = field(default_factory=list)
    owner: str | None = None

    def __str__(self) -> str:
        return self.id if self.id == self.called else f"{self.id} ({HEADER}: {self.called})"


class RunningRequests:
    """The names of the requests that run in the pipeline."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str | None, str], list[RequestName]] = {}

    def admit(self, name: RequestName, chosen: str | None) -> str:
        """Gives a request that is about to run its id: the one its body has chosen, or its header's.

        A header's id may be that of several requests at once, as services pass on what they are asked under;
        the second then has a suffix. One chosen in a body is meant to be unique.

        Raises:
            RequestError: ``chosen`` is the id of another running request of this owner, which goes on.
        """
        if chosen is not None and self._is_taken(name.owner, chosen):
            raise RequestError(
                f"request_id: request {chosen!r} is running already; use another id, or none",
                param="request_id",
                code="duplicate_request_id",
                status=409,
            )
        name.id = chosen or name.called
        while self._is_taken(name.owner, name.id):
            name.id = f"{name.called}-{uuid4().hex[:8]}"
        name.parts = [name.id]
        self._enter(name)
        return name.id

    def split(self, name: RequestName, count: int) -> Sequence[str]:
        """The ids of the parts of a running request: its own for one part, numbered ones for several."""
        if count > 1:
            self.leave(name)
            prefix = name.id
            while any(self._is_taken(name.owner, f"{prefix}-{index}") for index in range(count)):
                prefix = f"{name.id}-{uuid4().hex[:8]}"
            name.parts = [f"{prefix}-{index}" for index in range(count)]
            self._enter(name)
        return name.parts

    def leave(self, name: RequestName) -> None:
        """It does not run any more, or never has."""
        for each in _names(name):
            same = self._by_name.get((name.owner, each), [])
            if name in same:
                same.remove(name)
                if not same:
                    del self._by_name[name.owner, each]

    def meant_by(self, text: str, owner: str | None) -> list[str]:
        """The ids in the pipeline of the owner's requests that go by this name, bare or as answers show it.

        Several if several were called so. One that is not known here may be known to the pipeline.
        """
        bare = next((text.removeprefix(prefix) for prefix in _PREFIXES if text.startswith(prefix)), text)
        for each in (text, bare):
            if names := self._by_name.get((owner, each)):
                return [part for name in names for part in ([each] if each in name.parts else name.parts)]
        return [text]

    def _enter(self, name: RequestName) -> None:
        for each in _names(name):
            self._by_name.setdefault((name.owner, each), []).append(name)

    def _is_taken(self, owner: str | None, request_id: str) -> bool:
        names = self._by_name.get((owner, request_id), ())
        return any(request_id == name.id or request_id in name.parts for name in names)


def _names(name: RequestName) -> set[str]:
    return {name.id, name.called, *name.parts}


class RequestIds:
    """Names every request, tells its caller in every answer, and logs what was refused or failed.

    Routes find the name in ``request.state.request_name``; ``request.state.request_id`` is its id.
    """

    def __init__(self, app: ASGIApp, *, running: RunningRequests) -> None:
        self.app = app
        self.running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
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
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = name.id
            await send(message)

        try:
            await self.app(scope, receive, named)
        finally:
            self.running.leave(name)
            # What failed unforeseen is answered further out, and logged with its traceback there.
            if status:
                logger.log(
                    logging.INFO if status >= 400 else logging.DEBUG,
                    "Request %s: %s %s was answered with %d within %.3f s",
                    name,
                    scope["method"],
                    quote(scope["path"]),  # or a line could be made to look like several
                    status,
                    time.monotonic() - started,
                )


def _called(headers: Headers) -> str:
    """The id that the caller gave, or a new one."""
    given = (headers.get(header, "") for header in _HEADERS)
    return next(filter(is_usable, given), None) or new_request_id()
