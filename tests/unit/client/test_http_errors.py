"""HTTP errors as exceptions: today's form, older forms, and bodies without an error object."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sglang_omni.client import ClientError, RequestError
from sglang_omni.client.http.errors import error_of_event, error_of_response


def response(status: int, body: Any) -> httpx.Response:
    content = {"text": body} if isinstance(body, str) else {"json": body}
    return httpx.Response(status, **content)


def error(**fields: Any) -> dict[str, Any]:
    return {"error": {"message": "no", "param": None, **fields}}


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, error(type="invalid_request_error", code="context_length_exceeded"), "context_length_exceeded"),
        (404, error(type="invalid_request_error", code="model_not_found"), "model_not_found"),
        (401, error(type="authentication_error", code=None), None),
        # Servers of this package before: the reason in type, the status in code.
        (404, error(type="model_not_found", code=404), "model_not_found"),
        (400, error(type="invalid_request_error", code=400), None),
        # vLLM's.
        (400, error(type="BadRequestError", code=400), None),
        (400, {"object": "error", "message": "no", "type": "BadRequestError", "code": 400}, None),
        # Proxies'.
        (403, "no", None),
        (403, {"error": "no"}, None),
        (400, {"error": {"message": "no"}}, None),
    ],
)
def test_requests_at_fault(status: int, body: Any, code: str | None) -> None:
    exception = error_of_response(response(status, body))
    assert isinstance(exception, RequestError)
    assert (exception.message, exception.status, exception.code) == ("no", status, code)


def test_what_is_not_the_requests_fault() -> None:
    late = error_of_response(response(504, error(type="server_error", code="request_timeout")))
    assert isinstance(late, TimeoutError)
    failed = error_of_response(response(502, "<html>bad gateway</html>"))
    assert isinstance(failed, ClientError)
    assert (str(failed), failed.status) == ("<html>bad gateway</html>", 502)
    assert str(error_of_response(response(500, []))) == "[]"


@pytest.mark.parametrize(
    ("fields", "kind", "status"),
    [
        ({"type": "invalid_request_error", "code": "context_length_exceeded"}, RequestError, 400),
        ({"type": "invalid_request_error", "code": "model_not_found"}, RequestError, 404),
        ({"type": "rate_limit_error", "code": None}, RequestError, 429),
        ({"type": "invalid_request_error", "code": 413}, RequestError, 413),
        ({"type": "server_error", "code": None}, ClientError, 500),
        ({"type": "server_error", "code": "service_unavailable"}, ClientError, 503),
        ({"type": "server_error", "code": 503}, ClientError, 503),
        ({}, ClientError, 500),
    ],
)
def test_the_error_that_ends_a_stream(fields: dict[str, Any], kind: type, status: int) -> None:
    exception = error_of_event({"message": "no", **fields})
    assert isinstance(exception, kind)
    assert (str(exception), exception.status) == ("no", status)


@pytest.mark.parametrize("code", ["request_timeout", 504])
def test_a_stream_that_took_too_long(code: str | int) -> None:
    assert isinstance(error_of_event({"message": "no", "type": "server_error", "code": code}), TimeoutError)


def test_an_error_without_a_message_says_what_came() -> None:
    assert str(error_of_event("gone")) == "gone"
    assert str(error_of_event(None)) == "None"
