"""What a client tells an observer of its requests, for metrics and traces."""

from __future__ import annotations

from typing import Protocol

from sglang_omni.client.types import GenerateChunk, GenerateRequest


class RequestWatch(Protocol):
    """Follows one request."""

    def chunk(self, chunk: GenerateChunk) -> None:
        """A chunk has come; the last one, with ``finish_reason``, is the whole result."""
        ...

    def end(self, error: BaseException | None) -> None:
        """The request is over; ``error`` is what ended it before its result came."""
        ...


class RequestObserver(Protocol):
    """Is told of every request before it is sent."""

    def begin(self, request: GenerateRequest, request_id: str) -> RequestWatch | None:
        """What follows the request; None if it is not to be followed."""
        ...
