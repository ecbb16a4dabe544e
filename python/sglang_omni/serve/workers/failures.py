"""Failures on their way from one process of the server to another, where clients are answered with them."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException

from sglang_omni.proto import RequestError, Unavailable, shortened


class OtherFailure(RuntimeError):
    """A failure of another process that is no error of these kinds; the text names it."""


def fields_of(exc: BaseException) -> dict[str, Any]:
    """A failure as fields, for ``failure_of`` in the other process."""
    if isinstance(exc, HTTPException):
        return {"http": exc.status_code, "detail": str(exc.detail), "headers": dict(exc.headers or {})}
    if isinstance(exc, RequestError | Unavailable):
        return {"unavailable": isinstance(exc, Unavailable), **exc.to_dict()}
    if isinstance(exc, TimeoutError):
        return {"timeout": str(exc)}
    if isinstance(exc, ValueError):
        return {"value": shortened(str(exc))}
    if isinstance(exc, OSError):
        return {"connection": str(exc)}
    return {"other": shortened(str(exc) if type(exc) is RuntimeError else f"{type(exc).__name__}: {exc}")}


def failure_of(fields: dict[str, Any]) -> Exception:
    """The failure that ``fields_of`` was given."""
    match fields:
        case {"http": status, "detail": detail, "headers": headers}:
            return HTTPException(status, detail, headers)
        case {"unavailable": True, "message": message}:
            return Unavailable(message)
        case {"unavailable": False, **error}:
            return RequestError.from_dict(error)
        case {"timeout": text}:
            return TimeoutError(text)
        case {"value": text}:
            return ValueError(text)
        case {"connection": text}:
            return ConnectionError(text)
    return OtherFailure(fields["other"])
