"""What a ``response.create`` asks for: the session's configuration with its overrides, and its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.config import SessionConfig
from sglang_omni.serve.realtime.config_checks import updated
from sglang_omni.serve.realtime.conversation import MAX_ITEMS, Conversation
from sglang_omni.serve.realtime.events import validated
from sglang_omni.serve.realtime.fields import RealtimeModel
from sglang_omni.serve.realtime.items import Item, read_item
from sglang_omni.serve.realtime.response import Caller, ResponseRequest
from sglang_omni.serve.realtime.sound import AudioFormat
from sglang_omni.serve.state import AppState

# Fields of the session that a response may have itself.
_OVERRIDES = (
    *("instructions", "output_modalities", "tools", "tool_choice", "parallel_tool_calls"),
    *("max_output_tokens", "temperature"),
)


class _Own(RealtimeModel):
    """The fields that only a response has. ``input``: items, or references to some by their ids."""

    conversation: Literal["auto", "none"] = "auto"
    input: Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS)] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None


def read_response_request(
    fields: dict[str, Any] | None,
    config: SessionConfig,
    conversation: Conversation,
    conversation_id: str,
    server: AppState,
    caller: Caller,
) -> ResponseRequest:
    """
    Raises:
        RequestError: A field is unknown, wrong, or beyond the pipeline.
    """
    fields = fields or {}
    overrides = {name: fields[name] for name in _OVERRIDES if name in fields}
    if isinstance(audio := fields.get("audio"), dict):
        if set(audio) - {"output"}:
            raise RequestError(
                "response.audio: has only 'output'", param="response.audio", code="unknown_parameter"
            )
        overrides["audio"] = audio
    rest = {name: value for name, value in fields.items() if name not in (*_OVERRIDES, "audio")}
    own = validated(_Own, rest, "response.")
    if overrides:
        config = updated(config, overrides, server, caller.owner, "response.")
    items: Sequence[Item] = list(conversation.items)
    if own.input is not None:
        items = [
            _item(each, conversation, server, config.audio.input.format, f"response.input[{index}].")
            for index, each in enumerate(own.input)
        ]
    if own.conversation == "none":
        return ResponseRequest(config, items, None, None, own.metadata)
    return ResponseRequest(config, items, conversation, conversation_id, own.metadata)


def _item(
    fields: dict[str, Any], conversation: Conversation, server: AppState, sound: AudioFormat, prefix: str
) -> Item:
    if fields.get("type") == "item_reference" and isinstance(fields.get("id"), str):
        return conversation.get(fields["id"])
    return read_item(fields, server, sound, prefix)
