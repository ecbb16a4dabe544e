"""Events of clients: their models, and how one is read. Events of the server are plain dicts."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_core import from_json

from sglang_omni._core import json_excess
from sglang_omni.client import RequestError
from sglang_omni.config.nearest import nearest
from sglang_omni.serve.api.errors import describe
from sglang_omni.serve.api.validation import validation_error
from sglang_omni.serve.realtime.fields import RealtimeModel

M = TypeVar("M", bound=RealtimeModel)

# Not options: no event that a session can use comes near.
_MAX_BYTES = 16 * 2**20
_MAX_VALUES = 2**14
_MAX_PARTS = 2**13
_MAX_NAMES = 256
_MAX_DEPTH = 32

Id = Annotated[str, Field(min_length=1, max_length=512)]
Raw = dict[str, Any]


class ClientEvent(RealtimeModel):
    """``event_id``: the client's name of the event, which an error about it repeats."""

    type: str
    event_id: Annotated[str, Field(max_length=512)] | None = None


class SessionUpdate(ClientEvent):
    session: Raw


class InputAudioAppend(ClientEvent):
    audio: str


class InputAudioCommit(ClientEvent):
    pass


class InputAudioClear(ClientEvent):
    pass


class OutputAudioClear(ClientEvent):
    pass


class ItemCreate(ClientEvent):
    """``previous_item_id``: after which item; "root" for the beginning; None for the end."""

    item: Raw
    previous_item_id: Id | None = None


class ItemRetrieve(ClientEvent):
    item_id: Id


class ItemDelete(ClientEvent):
    item_id: Id


class ItemTruncate(ClientEvent):
    item_id: Id
    content_index: Annotated[int, Field(ge=0)] = 0
    audio_end_ms: Annotated[int, Field(ge=0)]


class ResponseCreate(ClientEvent):
    response: Raw | None = None


class ResponseCancel(ClientEvent):
    response_id: Id | None = None


EVENTS: dict[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "input_audio_buffer.append": InputAudioAppend,
    "input_audio_buffer.commit": InputAudioCommit,
    "input_audio_buffer.clear": InputAudioClear,
    "output_audio_buffer.clear": OutputAudioClear,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.delete": ItemDelete,
    "conversation.item.truncate": ItemTruncate,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}


def parse_event(text: str) -> Raw:
    """The fields of an event that came as JSON.

    Raises:
        RequestError: It is no JSON object, or holds too much.
    """
    body = text.encode()
    over = json_excess(
        body, text=_MAX_BYTES, values=_MAX_VALUES, parts=_MAX_PARTS, names=_MAX_NAMES, depth=_MAX_DEPTH
    )
    if over is not None:
        raise RequestError(f"the event holds too much: {over}", code="request_too_complex")
    try:
        value = from_json(body)
    except ValueError as exc:
        raise RequestError(f"the event is not valid JSON: {exc}", code="invalid_json") from exc
    if not isinstance(value, dict):
        raise RequestError("an event must be a JSON object", code="invalid_type")
    return value


def read_event(fields: Raw) -> ClientEvent:
    """
    Raises:
        RequestError: There is no such type of event, or its fields are wrong.
    """
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise RequestError("type: is required", param="type", code="missing_required_parameter")
    model = EVENTS.get(kind)
    if model is None:
        near = nearest(kind, EVENTS)
        hint = f"did you mean {near!r}?" if near else f"the types are {', '.join(EVENTS)}"
        raise RequestError(f"type: no event {kind[:100]!r}; {hint}", param="type", code="invalid_value")
    return validated(model, fields)


def validated(model: type[M], fields: Raw, prefix: str = "") -> M:
    """The model of these fields. ``prefix``: of their names in an error, as ``session.``.

    Raises:
        RequestError: A field is unknown or wrong.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as exc:
        error = validation_error(exc.errors(include_url=False), model)
        param = f"{prefix}{error.param}" if error.param else prefix.rstrip(".") or None
        message = error.message
        if prefix:
            message = f"{prefix.rstrip('.')}: {message}"
        raise RequestError(message, param=param, code=error.code) from exc


def error_fields(exc: Exception) -> dict[str, Any]:
    """The error object of an event: ``type``, ``code``, ``message`` and ``param``."""
    _, body = describe(exc)
    fields: dict[str, Any] = body["error"]
    return fields


def new_id(kind: Literal["event", "item", "resp", "sess", "conv", "call", "rtc"]) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
