"""One request on its way to a server: its name, its headers, and how long it may take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import httpx

from sglang_omni.generation.request import GenerateRequest
from sglang_omni.generation.request_id import HEADER, OWNER_HEADER, is_usable, new_request_id

CONNECT_TIMEOUT_S = 10.0
# The server enforces the request's timeout; the margin lets its error arrive.
_MARGIN_S = 5.0


@dataclass(frozen=True)
class HttpCall:
    """
    Attributes:
        chosen: The id that the caller gave the request; None if it may have any.
        id: That id, or a random one.
        deadline: Until when it may be sent again, by ``time.monotonic``; None for ever.
    """

    request: GenerateRequest
    chosen: str | None = None
    id: str = field(default_factory=new_request_id)
    deadline: float | None = None

    @classmethod
    def of(cls, request: GenerateRequest, request_id: str | None) -> HttpCall:
        deadline = None if request.timeout is None else time.monotonic() + request.timeout
        return cls(request, request_id, request_id or new_request_id(), deadline)

    @property
    def is_idempotent(self) -> bool:
        """True if the server may be asked twice: it refuses a second one of an id that a caller chose."""
        return self.chosen is not None

    @property
    def headers(self) -> httpx.Headers:
        """The request's id, session and owner. An unusable id is for the server to refuse, in the body."""
        headers = {HEADER: self.id} if is_usable(self.id) else {}
        session = self.request.session_id or self.request.metadata.get("session_id")
        if session is not None:
            headers["x-session-id"] = str(session)
        if self.request.owner is not None:
            headers[OWNER_HEADER] = self.request.owner
        return httpx.Headers(headers, encoding="utf-8")

    @property
    def timeout(self) -> httpx.Timeout:
        seconds = self.request.timeout
        return httpx.Timeout(None if seconds is None else seconds + _MARGIN_S, connect=CONNECT_TIMEOUT_S)

    def __str__(self) -> str:
        return f"(request {self.id!r})"
