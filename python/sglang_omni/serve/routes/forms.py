"""Reads multipart forms: a bounded number of parts, in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser

from sglang_omni.proto import RequestError

MAX_FIELDS = 64
MAX_FILES = 8
MAX_FIELD_SIZE = 64 * 2**10


class _InMemory(MultiPartParser):
    """Keeps files in memory: they are needed as a whole, bodies are limited, and a disk may be full."""

    spool_max_size = sys.maxsize


def form_schema(
    fields: type[BaseModel], file: str, recording: str, spelled: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A form for OpenAPI. FastAPI does not know its fields, as ``read_form`` reads them.

    Args:
        fields: Those beside the recording.
        file: The field of the recording.
        recording: What the recording is.
        spelled: How a form spells fields that have other names in ``fields``.
    """
    schema = fields.model_json_schema()
    properties = {(spelled or {}).get(name, name): field for name, field in schema["properties"].items()}
    sound = {"type": "string", "format": "binary", "description": recording}
    required = [file, *schema.get("required", ())]
    form = {**schema, "properties": {file: sound, **properties}, "required": required}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}


async def read_form(request: Request, file: str = "file") -> FormData:
    """The fields and files of a request's body.

    Args:
        file: The field of the recording, for errors.

    Raises:
        RequestError: The body is not a form, or has more parts than any request needs.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise RequestError(
            f"the body must be multipart/form-data with the recording as {file!r}",
            param=file,
            code="invalid_content_type",
        )
    try:
        async with aclosing(request.stream()) as stream:
            return await _InMemory(
                request.headers,
                stream,
                max_files=MAX_FILES,
                max_fields=MAX_FIELDS,
                max_part_size=MAX_FIELD_SIZE,
            ).parse()
    except MultiPartException as exc:
        raise RequestError(
            f"the body is not a valid multipart form: {exc.message}", code="invalid_form"
        ) from exc
