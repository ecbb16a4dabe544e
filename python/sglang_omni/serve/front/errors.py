"""Failures as OpenAI's error object: a message, a type (whose fault it is) and a code to test for."""

from __future__ import annotations

import errno
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection

from sglang_omni.generation.errors import ClientError
from sglang_omni.proto import RequestError, Unavailable, shortened
from sglang_omni.serve.front.route_hints import RouteHints
from sglang_omni.serve.front.validation import validation_error

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499


class ClientDisconnected(Exception):
    """The caller left before it was answered. In mid-upload it is starlette's ClientDisconnect."""


# Out of disk space or descriptors: another try may find some.
_SHORT_OF = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# Codes of errors for which starlette has only a status.
_HTTP_CODES = {
    404: "unknown_url",
    405: "method_not_allowed",
    413: "request_too_large",
    429: "rate_limit_exceeded",
}
# What OpenAPI says of an error of any route, in place of FastAPI's own, which none has.
_TEXT, _TEXT_OR_NULL = {"type": "string"}, {"type": ["string", "null"]}
_FIELDS = {"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL}
TOLD: dict[str, Any] = {
    "description": "An error",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {"error": {"type": "object", "required": list(_FIELDS), "properties": _FIELDS}},
            }
        }
    },
}


def error_body(
    message: str, status: int, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object.

    Args:
        message: The text; a long one is cut, since it may quote what a stage or a caller made up.
        status: The HTTP status, which decides the object's ``type``.
        code: The reason that callers test for.
        param: The request's field at fault.
    """
    message = shortened(message)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(exc: Exception, *, request_id: str | None = None) -> tuple[int, dict[str, Any]]:
    """Status and body for a failure. An unexpected one is logged with its traceback."""
    if isinstance(exc, HTTPException):
        return exc.status_code, error_body(
            str(exc.detail), exc.status_code, code=_HTTP_CODES.get(exc.status_code)
        )
    if isinstance(exc, RequestError):
        return exc.status, error_body(exc.message, exc.status, code=exc.code, param=exc.param)
    if isinstance(exc, TimeoutError):
        return 504, error_body(str(exc) or "the request timed out", 504, code="request_timeout")
    if isinstance(exc, Unavailable):
        return 503, error_body(str(exc), 503, code="service_unavailable")
    if isinstance(exc, OSError) and exc.errno in _SHORT_OF:
        logger.error("Request %s failed: %s", request_id or "-", exc)
        return 503, error_body(f"the server is out of room: {exc.strerror}", 503, code="service_unavailable")
    if isinstance(exc, (ClientError, RuntimeError)):
        logger.error("Request %s failed: %s", request_id or "-", shortened(str(exc)))
        return 500, error_body(str(exc), 500)
    logger.error("Request %s failed", request_id or "-", exc_info=exc)
    return 500, error_body(f"internal error: {type(exc).__name__}: {exc}", 500)


def error_response(exc: Exception, *, request_id: str | None = None) -> JSONResponse:
    status, body = describe(exc, request_id=request_id)
    headers = dict(exc.headers or {}) if isinstance(exc, HTTPException) else {}
    if request_id:
        headers["x-request-id"] = request_id
    if status == 503:
        headers |= unavailable_headers(ends=isinstance(exc, Unavailable))
    return JSONResponse(body, status_code=status, headers=headers)


def unavailable_headers(*, ends: bool) -> dict[str, str]:
    """What a 503 means to a client, or a load balancer that asks for the server's health.

    Args:
        ends: The next try must reach another server, to which this connection does not lead.
    """
    return {"retry-after": "1", **({"connection": "close"} if ends else {})}


def install(app: FastAPI, routes: RouteHints) -> None:
    """Have ``app`` answer every failure with OpenAI's error object. ``routes``: those of the app."""

    async def invalid(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        return error_response(validation_error(exc.errors()))

    async def http(request: HTTPConnection, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        message = str(exc.detail)
        method, path = request.scope.get("method", "WebSocket"), request.url.path
        if exc.status_code == 404:
            message = f"no such route: {method} {path}{routes.hint(request.scope)}"
        elif exc.status_code == 405:
            allowed = routes.methods(request.scope["path"])
            message = f"{path} takes {' and '.join(allowed)}, not {method}"
            return error_response(HTTPException(405, message, {"Allow": ", ".join(allowed)}))
        return error_response(HTTPException(exc.status_code, message, exc.headers))

    async def disconnected(request: Request, exc: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def failed(request: Request, exc: Exception) -> Response:
        return error_response(exc, request_id=getattr(request.state, "request_id", None))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnected, disconnected)
    app.add_exception_handler(ClientDisconnect, disconnected)
    for kind in (RequestError, TimeoutError, RuntimeError, Exception):
        app.add_exception_handler(kind, failed)
