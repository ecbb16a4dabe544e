"""Every failure as OpenAI's error object, with the HTTP status as its code."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from sglang_omni.client import ClientError, RequestError
from sglang_omni.proto import Unavailable
from sglang_omni.serve.fields import TAG

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
_NO_OBJECT = "the body must be a JSON object, sent with content-type: application/json"


class ClientDisconnected(Exception):
    """The caller left before the answer was there."""


def error_body(
    message: str, status: int, *, kind: str | None = None, param: str | None = None
) -> dict[str, Any]:
    if kind is None:
        kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def describe(exc: Exception, *, request_id: str | None = None) -> tuple[int, dict[str, Any]]:
    """Status and body for a failure; what nobody foresaw is logged with its traceback."""
    if isinstance(exc, RequestError):
        return exc.status, error_body(exc.message, exc.status, kind=exc.code, param=exc.param)
    if isinstance(exc, TimeoutError):
        return 504, error_body(str(exc) or "the request timed out", 504, kind="timeout_error")
    if isinstance(exc, Unavailable):
        return 503, error_body(str(exc), 503)
    if isinstance(exc, (ClientError, RuntimeError)):
        logger.error("Request %s failed: %s", request_id or "-", exc)
        return 500, error_body(str(exc), 500)
    logger.error("Request %s failed", request_id or "-", exc_info=exc)
    return 500, error_body(f"internal error: {type(exc).__name__}: {exc}", 500)


def error_response(exc: Exception, *, request_id: str | None = None) -> JSONResponse:
    status, body = describe(exc, request_id=request_id)
    headers = {"x-request-id": request_id} if request_id else {}
    if isinstance(exc, Unavailable):
        # The next try is to reach a server that takes it, which this connection does not lead to.
        headers |= {"retry-after": "1", "connection": "close"}
    return JSONResponse(body, status_code=status, headers=headers)


def validation_error(errors: Sequence[Any], model: type[BaseModel] | None = None) -> RequestError:
    """The first of pydantic's errors, as the caller spells the field; the others by their names."""
    first = next((error for error in errors if error["type"] != "extra_forbidden"), errors[0])
    if first["type"] == "json_invalid":
        reason = (first.get("ctx") or {}).get("error", "")
        return RequestError(f"the body is not valid JSON: {reason}".rstrip(": "))
    param = field_path(first["loc"])
    if first["type"] == "extra_forbidden":
        message = f"unknown field {param!r}" + _suggestion(str(first["loc"][-1]), model)
    else:
        text = first["msg"].removeprefix("Value error, ")
        message = f"{param}: {text}" if param else _NO_OBJECT
    others = sorted({field_path(error["loc"]) for error in errors} - {param, ""})
    if others:
        message += f" (also wrong: {', '.join(others)})"
    return RequestError(message, param=param or None)


def field_path(loc: Iterable[str | int]) -> str:
    """``("body", "messages", 0, "content")`` as ``messages[0].content``."""
    path = ""
    for index, item in enumerate(loc):
        if isinstance(item, int):
            path += f"[{item}]"
        elif not (item.startswith(TAG) or (index == 0 and item == "body")):
            path += f".{item}" if path else item
    return path


def _suggestion(name: str, model: type[BaseModel] | None) -> str:
    near = difflib.get_close_matches(name, model.model_fields if model else (), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _body_model(request: Request) -> type[BaseModel] | None:
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def install(app: FastAPI) -> None:
    """Answer every failure of ``app`` in OpenAI's shape."""

    async def invalid(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        return error_response(validation_error(exc.errors(), _body_model(request)))

    async def http(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        message = str(exc.detail)
        if exc.status_code == 404:
            message = f"no such route: {request.method} {request.url.path}"
        elif exc.status_code == 405:
            message = f"{request.url.path} does not take {request.method}"
        return JSONResponse(
            error_body(message, exc.status_code), status_code=exc.status_code, headers=exc.headers
        )

    async def disconnected(request: Request, exc: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def failed(request: Request, exc: Exception) -> Response:
        return error_response(exc, request_id=getattr(request.state, "request_id", None))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnected, disconnected)
    for kind in (RequestError, TimeoutError, RuntimeError, Exception):
        app.add_exception_handler(kind, failed)
