"""Events of clients: their models, and how one is read. Events of the server are plain dicts."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_core import from_json

from sglang_omni._core import json_excess
from sglang_omni.config.nearest import nearest
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.errors import describe
from sglang_omni.serve.front.validation import validation_error
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
    """What every event has."""

    type: str
    """Which event it is."""
    event_id: Annotated[str, Field(max_length=512)] | None = None
    """The client's name of the event, which an error about it repeats."""


class SessionUpdate(ClientEvent):
    """Change the session."""

    session: Raw
    """The fields to change, as in [the session](#the-session); others stay."""


class InputAudioAppend(ClientEvent):
    """Add sound to the input buffer."""

    audio: str
    """Sound in the session's input format, as base64."""


class InputAudioCommit(ClientEvent):
    """End the turn: the buffer becomes a user's message."""


class InputAudioClear(ClientEvent):
    """Forget the sound in the buffer."""


class OutputAudioClear(ClientEvent):
    """Silence the answer that is being played. Over WebRTC only."""


class ItemCreate(ClientEvent):
    """Add an item to the conversation."""

    item: Raw
    """A message, a ``function_call`` or a ``function_call_output``, as OpenAI has them."""
    previous_item_id: Id | None = None
    """After which item it goes; ``root`` for the beginning. At the end if left out."""


class ItemRetrieve(ClientEvent):
    """Ask for an item."""

    item_id: Id
    """Which item to send back, with its sound."""


class ItemDelete(ClientEvent):
    """Remove an item from the conversation."""

    item_id: Id
    """Which item to remove."""


class ItemTruncate(ClientEvent):
    """Cut an answer to what was played of it."""

    item_id: Id
    """The answer that was interrupted."""
    content_index: Annotated[int, Field(ge=0)] = 0
    """Which of its parts has the sound."""
    audio_end_ms: Annotated[int, Field(ge=0)]
    """How much of the sound was played, in milliseconds."""


class ResponseCreate(ClientEvent):
    """Ask for an answer."""

    response: Raw | None = None
    """What differs from the session for this answer; ``conversation: "none"`` with ``input`` for
    an answer beside the conversation."""


class ResponseCancel(ClientEvent):
    """End an answer."""

    response_id: Id | None = None
    """Which answer to end; the one under way if left out."""


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
            begins_with_field = bool(error.param) and message.startswith(f"{error.param}: ")
            message = f"{prefix}{message}" if begins_with_field else f"{prefix.rstrip('.')}: {message}"
        raise RequestError(message, param=param, code=error.code) from exc


def error_fields(exc: Exception) -> dict[str, Any]:
    """The error object of an event: ``type``, ``code``, ``message`` and ``param``."""
    _, body = describe(exc)
    fields: dict[str, Any] = body["error"]
    return fields


def new_id(kind: Literal["event", "item", "resp", "sess", "conv", "call", "rtc"]) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
