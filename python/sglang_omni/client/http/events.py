"""Server-sent events: the JSON objects of a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx

from sglang_omni.client.http.errors import error_of_event


async def events_of(response: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON objects of a server-sent event stream.

    Raises:
        RequestError, TimeoutError, ClientError: The stream carried an error.
    """
    async with aclosing(_lines(response)) as lines:
        async for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if event.get("error"):
                raise error_of_event(event["error"])
            yield event


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Lines ended by LF alone, as in event streams; ``aiter_lines`` would also split at U+2028."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
