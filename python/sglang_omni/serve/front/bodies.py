"""Reads JSON bodies: measures, parses and validates them, large ones outside of the event loop.

Parsing and validating hold the interpreter lock even in a thread. So the values of a body are counted first,
without the lock, and a body with too many is refused; then no later step takes long.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers

from sglang_omni._core import json_excess
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.limits import BodyLimits
from sglang_omni.serve.front.validation import NO_OBJECT, validation_error

# Not options: no request that a pipeline can serve comes near. Most values are token ids.
MAX_VALUES = 2**20
MAX_PARTS = 2**15
MAX_NAMES = 256
MAX_DEPTH = 32

# Smaller bodies take less than a millisecond, for which a thread does not pay.
_OFF_LOOP = 64 * 2**10
_JSON_TYPE = re.compile(r"application/([^;\s]+\+)?json\s*(;|$)", re.IGNORECASE)


@dataclass(frozen=True)
class JsonLimits:
    """How much a JSON body may hold. ``size``: bytes apart from its media."""

    size: int = BodyLimits.max_json_size

    def check(self, body: bytes) -> None:
        """Raises RequestError if ``body`` holds more than it may."""
        over = json_excess(
            body, text=self.size, values=MAX_VALUES, parts=MAX_PARTS, names=MAX_NAMES, depth=MAX_DEPTH
        )
        if over is None:
            return
        if over == "text":
            raise RequestError(
                f"the body without its media is over the limit of {self.size} bytes (--max-json-size)",
                code="request_too_large",
                status=413,
            )
        raise RequestError(f"the body has {_TOO_MUCH[over]}", code="request_too_complex")


_TOO_MUCH = {
    "values": f"over {MAX_VALUES} values; send fewer, in several requests",
    "parts": f"over {MAX_PARTS} texts, lists and objects; send fewer, in several requests",
    "names": f"an object of over {MAX_NAMES} fields; no field here has as many",
    "depth": f"lists and objects over {MAX_DEPTH} levels deep; no field here is as deep",
}


def check_json_type(headers: Headers) -> None:
    """Refuse a body that is not declared as JSON: a browser needs no preflight to send one for a web page.

    Raises:
        RequestError: 415.
    """
    if not _JSON_TYPE.match(headers.get("content-type", "")):
        raise RequestError(
            "the body must be JSON, sent with Content-Type: application/json",
            code="unsupported_media_type",
            status=415,
        )


def read_json(body: bytes, model: type[BaseModel], limits: JsonLimits) -> BaseModel:
    """The request in a JSON body.

    Args:
        body: UTF-8, with or without a byte order mark.
        model: The request's model.
        limits: How much the body may hold.

    Raises:
        RequestError: The body is not valid JSON, holds too much, or does not fit the model.
    """
    limits.check(body)
    try:
        value = from_json(body.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as exc:
        raise RequestError(f"the body is not valid JSON: {exc}", code="invalid_json") from exc
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        raise validation_error(exc.errors(include_url=False), model) from exc


class JsonBodies:
    """Reads the bodies of one server's requests."""

    def __init__(self, limits: JsonLimits) -> None:
        self._limits = limits
        # One thread, between whose steps the event loop runs. Several would pass the lock to each other.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bodies")

    async def read(self, request: Request, model: type[BaseModel]) -> BaseModel:
        """The request in the body.

        Raises:
            RequestError: There is no body, it is not JSON, holds too much, or does not fit ``model``.
        """
        body = await request.body()
        if not body:
            raise RequestError(f"{NO_OBJECT}; this one is empty", code="invalid_type")
        check_json_type(request.headers)
        if len(body) < _OFF_LOOP:
            return read_json(body, model, self._limits)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, read_json, body, model, self._limits)


class JsonRoute(APIRoute):
    """A route whose body, if it takes one, is read by the app's ``JsonBodies``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        field = self.body_field
        if field is None:
            return handle
        model = field.field_info.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)

        async def read_and_handle(request: Request) -> Response:
            bodies: JsonBodies = request.app.state.server.bodies
            read = _ReadRequest(request.scope, request.receive)
            read.value = await bodies.read(read, model)
            return await handle(read)

        return read_and_handle


class _ReadRequest(Request):
    """A request whose body FastAPI finds parsed and validated."""

    value: BaseModel

    async def json(self) -> Any:
        return self.value
