"""A server's connections: sends requests, repeats those that may be, and raises what goes wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sglang_omni.client.http.call import CONNECT_TIMEOUT_S, HttpCall
from sglang_omni.client.http.errors import error_of_response
from sglang_omni.client.http.retries import may_repeat, pause_before
from sglang_omni.client.types import ClientError, GenerateRequest, ServerUnreachable

logger = logging.getLogger(__name__)

_HEALTH_TIMEOUT_S = 5.0
# Servers of many kinds close idle connections after 5 s; one that is just being closed would lose a request.
_KEEP_IDLE_S = 4.0


class HttpConnection:
    """
    Args:
        base_url: The server's URL, with or without a final ``/v1``.
        api_key: Sent as a bearer token.
        max_retries: How often a request is repeated at most.

    Raises:
        ValueError: ``base_url`` is no URL of a server.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, max_retries: int = 2) -> None:
        self.base_url = _checked(base_url).rstrip("/").removesuffix("/v1")
        self.headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._max_retries = max_retries
        # No read timeout: each request has its own.
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers=self.headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_IDLE_S),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    def health(self) -> dict[str, Any]:
        try:
            answer = httpx.get(
                f"{self.base_url}/health", headers=self.headers, timeout=_HEALTH_TIMEOUT_S, trust_env=False
            )
        except httpx.HTTPError as exc:
            return {"running": False, "status": "unreachable", "error": str(exc) or type(exc).__name__}
        try:
            fields = answer.json()
        except ValueError:
            fields = {}
        state = fields if isinstance(fields, dict) else {}
        return {**state, "running": bool(state.get("running", answer.is_success)) and answer.is_success}

    async def get(self, path: str) -> dict[str, Any]:
        """The JSON object that the server answers with."""
        call = HttpCall(GenerateRequest(timeout=_HEALTH_TIMEOUT_S))
        async with self._opened("GET", path, call, idempotent=True) as answer:
            await answer.aread()
        return json_of(answer)

    async def send(
        self, path: str, call: HttpCall, *, idempotent: bool = False, **content: Any
    ) -> httpx.Response:
        """The whole answer to a POST of ``content``, as httpx takes it.

        Args:
            idempotent: True if the server may be asked twice, even without an id of the caller's own.
        """
        async with self._opened(
            "POST", path, call, idempotent=idempotent or call.is_idempotent, **content
        ) as answer:
            await answer.aread()
        return answer

    @asynccontextmanager
    async def open(self, path: str, call: HttpCall, **content: Any) -> AsyncIterator[httpx.Response]:
        """The answer to a POST once its head is there; its body comes while it is read."""
        async with self._opened("POST", path, call, idempotent=call.is_idempotent, **content) as answer:
            yield answer

    @asynccontextmanager
    async def _opened(
        self, method: str, path: str, call: HttpCall, *, idempotent: bool, **content: Any
    ) -> AsyncIterator[httpx.Response]:
        """An answer that says yes. What fails, here or while it is read, is raised as the client's error."""
        try:
            answer = await self._answered(method, path, call, idempotent=idempotent, **content)
            try:
                if not answer.is_success:
                    await answer.aread()
                    raise error_of_response(answer)
                yield answer
            finally:
                await answer.aclose()
        except (httpx.HTTPError, ClientError, TimeoutError) as exc:
            error = self._as_ours(exc, call)
            # Of a server that is not there, what lies below says nothing more.
            raise error from (None if isinstance(error, ServerUnreachable) else exc)

    async def _answered(
        self, method: str, path: str, call: HttpCall, *, idempotent: bool, **content: Any
    ) -> httpx.Response:
        """The head of the answer to the last attempt."""
        attempt = 0
        while True:
            attempt += 1
            request = self._http.build_request(
                method, path, headers=call.headers, timeout=call.timeout, **content
            )
            failure: httpx.Response | httpx.HTTPError
            try:
                failure = answer = await self._http.send(request, stream=True)
            except httpx.HTTPError as exc:
                failure = exc
            pause = None
            if attempt <= self._max_retries and may_repeat(failure, idempotent=idempotent):
                pause = pause_before(attempt, failure)
            if pause is None or (call.deadline is not None and time.monotonic() + pause > call.deadline):
                if isinstance(failure, httpx.HTTPError):
                    raise failure
                return answer
            if isinstance(failure, httpx.Response):
                await failure.aclose()
            logger.info("%s %s is sent again in %.2f s: %s %s", method, path, pause, _short(failure), call)
            await asyncio.sleep(pause)

    def _as_ours(self, exc: Exception, call: HttpCall) -> Exception:
        """A failure as the client's; those of the service name the request."""
        if isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerUnreachable(f"no server answers at {self.base_url}: {_reason(exc)}")
        if isinstance(exc, httpx.TimeoutException):
            return TimeoutError(f"no answer from {self.base_url} in time ({type(exc).__name__}) {call}")
        if isinstance(exc, httpx.HTTPError):
            return ClientError(f"no answer from {self.base_url}: {_reason(exc)} {call}")
        if isinstance(exc, ClientError):
            return ClientError(f"{exc} {call}", status=exc.status)
        return TimeoutError(f"{exc} {call}")


def json_of(answer: httpx.Response) -> dict[str, Any]:
    """
    Raises:
        ClientError: The answer is no JSON object: what answers is another kind of server.
    """
    try:
        fields = answer.json()
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        kind = answer.headers.get("content-type", "no content type")
        raise ClientError(f"{answer.url} answered with {kind} and not with JSON; is the URL that of an API?")
    return fields


def _checked(base_url: str) -> str:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as exc:
        raise ValueError(f"{base_url!r} is no URL: {exc}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(
            f"{base_url!r} is no URL of a server; one begins with http:// or https://, "
            "as http://127.0.0.1:8000"
        )
    return base_url


def _short(failure: httpx.Response | httpx.HTTPError) -> str:
    return f"status {failure.status_code}" if isinstance(failure, httpx.Response) else _reason(failure)


def _reason(exc: BaseException) -> str:
    """What the system says, of which httpx reports only that attempts failed."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            # getaddrinfo errors are negative and carry their own message.
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return str(exc) or type(exc).__name__
