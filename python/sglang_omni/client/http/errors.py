"""Conversion of HTTP error bodies to exceptions: those of this package's servers and router, of OpenAI, and
of older servers, whose ``code`` was the HTTP status."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import httpx

from sglang_omni.client.types import ClientError
from sglang_omni.proto import RequestError

# An error inside a stream has no status; its type or code implies one.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "rate_limit_error": 429,
    "server_error": 500,
}
_STATUS_OF_CODE = {"model_not_found": 404, "service_unavailable": 503, "request_timeout": 504}
# Types that older servers gave to errors without a specific reason.
_OLD_CLASSES = {*_STATUS_OF_TYPE, "timeout_error"}


def error_of_response(response: httpx.Response) -> Exception:
    """``RequestError`` for a 4xx, ``TimeoutError`` for a 504, ``ClientError`` for other statuses."""
    try:
        body = response.json()
    except ValueError:
        body = None
    otherwise = response.text[:500] or response.reason_phrase
    error = body.get("error", body) if isinstance(body, dict) else None
    return _error(error, response.status_code, otherwise)


def error_of_event(error: Any) -> Exception:
    """The exception for the ``error`` of an event that ends a stream, classed as by its HTTP status."""
    fields = error if isinstance(error, Mapping) else {}
    code = fields.get("code")
    if isinstance(code, int):  # of an older server
        status = code
    else:
        status = _STATUS_OF_CODE.get(str(code)) or _STATUS_OF_TYPE.get(str(fields.get("type")), 500)
    return _error(error, status, str(error))


def _error(error: Any, status: int, otherwise: str) -> Exception:
    fields = error if isinstance(error, Mapping) else {"message": error}
    message = fields.get("message")
    message = message if isinstance(message, str) and message else otherwise
    if status == HTTPStatus.GATEWAY_TIMEOUT:
        return TimeoutError(message)
    if 400 <= status < 500:
        param = fields.get("param")
        return RequestError(
            message, param=param if isinstance(param, str) else None, code=_reason(fields), status=status
        )
    return ClientError(message, status=status)


def _reason(fields: Mapping[str, Any]) -> str | None:
    code, kind = fields.get("code"), fields.get("type")
    if isinstance(code, str):
        return code
    if isinstance(code, int) and isinstance(kind, str) and kind.islower() and kind not in _OLD_CLASSES:
        return kind  # of an older server of this package
    return None
