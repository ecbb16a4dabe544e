"""The items of a conversation, as clients send them, as sessions keep them, and as events show them."""

from __future__ import annotations

import binascii
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.clip import Clip
from sglang_omni.serve.realtime.events import Id, new_id, validated
from sglang_omni.serve.realtime.fields import RealtimeModel
from sglang_omni.serve.realtime.sound import AudioFormat, decoded
from sglang_omni.serve.realtime.spoken_text import Spoken
from sglang_omni.serve.state import AppState

Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system"]
PartKind = Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]
_PARTS: dict[Role, tuple[PartKind, ...]] = {
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
    "system": ("input_text",),
}
_MAX_PARTS = 64
Text = Annotated[str, Field(max_length=4_000_000)]


@dataclass
class Part:
    """A piece of a message.

    Attributes:
        text: Of a text part; of an image, its URL.
        transcript: What was said in an audio part; None while that is not known.
        is_heard: True if the pipeline itself reads ``transcript`` in place of the sound.
        spoken: Which sound of an answer speaks which text.
    """

    kind: PartKind
    text: str = ""
    audio: Clip | None = None
    transcript: str | None = None
    is_heard: bool = False
    detail: str = "auto"
    spoken: Spoken = field(default_factory=Spoken)

    def shown(self, sound: AudioFormat | None = None) -> dict[str, Any]:
        """As events show it; with its sound only in this format."""
        if self.kind in ("input_text", "output_text"):
            return {"type": self.kind, "text": self.text}
        if self.kind == "input_image":
            return {"type": self.kind, "image_url": self.text, "detail": self.detail}
        fields: dict[str, Any] = {"type": self.kind, "transcript": self.transcript}
        if sound is not None:
            fields["audio"] = None if self.audio is None else self.audio.encoded(sound)
        return fields


@dataclass(eq=False)
class Item:
    """
    Attributes:
        content: Of a message.
        name, call_id, arguments: Of a function call.
        output: Of a function's output, which names its call by ``call_id``.
        is_left_out: True if prompts do without it, since they would be too long.
    """

    id: str
    type: Literal["message", "function_call", "function_call_output"]
    role: Role | None = None
    status: Status = "completed"
    content: list[Part] = field(default_factory=list)
    name: str = ""
    call_id: str = ""
    arguments: str = ""
    output: str = ""
    is_left_out: bool = False

    def shown(self, sound: AudioFormat | None = None) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "id": self.id,
            "object": "realtime.item",
            "type": self.type,
            "status": self.status,
        }
        if self.type == "message":
            return fields | {"role": self.role, "content": [part.shown(sound) for part in self.content]}
        if self.type == "function_call":
            return fields | {"name": self.name, "call_id": self.call_id, "arguments": self.arguments}
        return fields | {"call_id": self.call_id, "output": self.output}


class _PartFields(RealtimeModel):
    type: str
    text: Text | None = None
    audio: str | None = None
    transcript: Text | None = None
    image_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


class _ItemFields(RealtimeModel):
    id: Id | None = None
    object: Literal["realtime.item"] | None = None
    status: Status | None = None


class _Message(_ItemFields):
    type: Literal["message"]
    role: Role
    content: Annotated[list[_PartFields], Field(max_length=_MAX_PARTS)]


class _FunctionCall(_ItemFields):
    type: Literal["function_call"]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: Text
    call_id: Id | None = None


class _FunctionOutput(_ItemFields):
    type: Literal["function_call_output"]
    call_id: Id
    output: Text


def read_item(fields: dict[str, Any], server: AppState, sound: AudioFormat, prefix: str = "item.") -> Item:
    """An item that a client sent. ``sound``: the format of input audio.

    Raises:
        RequestError: It is malformed, or the pipeline does not take what it holds.
    """
    match fields.get("type"):
        case "message":
            message = validated(_Message, fields, prefix)
            content = [
                _part(part, message.role, server, sound, f"{prefix}content[{index}]")
                for index, part in enumerate(message.content)
            ]
            return Item(message.id or new_id("item"), "message", message.role, content=content)
        case "function_call":
            call = validated(_FunctionCall, fields, prefix)
            return Item(
                call.id or new_id("item"),
                "function_call",
                name=call.name,
                call_id=call.call_id or new_id("call"),
                arguments=call.arguments,
            )
        case "function_call_output":
            output = validated(_FunctionOutput, fields, prefix)
            return Item(
                output.id or new_id("item"),
                "function_call_output",
                call_id=output.call_id,
                output=output.output,
            )
    raise RequestError(
        f"{prefix}type: must be 'message', 'function_call' or 'function_call_output'",
        param=f"{prefix}type",
        code="invalid_value",
    )


def _part(part: _PartFields, role: Role, server: AppState, sound: AudioFormat, where: str) -> Part:
    # Of an earlier version of the protocol.
    kind = {"text": "output_text" if role == "assistant" else "input_text"}.get(part.type, part.type)
    if kind not in _PARTS[role] or kind == "output_audio":
        allowed = ", ".join(name for name in _PARTS[role] if name != "output_audio")
        raise RequestError(
            f"{where}.type: a client's {role} message has parts of {allowed}, not {part.type[:100]!r}",
            param=f"{where}.type",
            code="invalid_value",
        )
    if kind == "input_audio":
        server.check_input("audio", where)
        samples = decoded(base64_bytes(_given(part.audio, f"{where}.audio"), f"{where}.audio"), sound)
        if not len(samples):
            raise RequestError(f"{where}.audio: is empty", param=f"{where}.audio", code="invalid_audio")
        return Part("input_audio", audio=Clip.of(samples), transcript=part.transcript)
    if kind == "input_image":
        server.check_input("image", where)
        url = _given(part.image_url, f"{where}.image_url")
        return Part("input_image", text=url, detail=part.detail or "auto")
    return Part("input_text" if kind == "input_text" else "output_text", _given(part.text, f"{where}.text"))


def _given(value: str | None, param: str) -> str:
    if value is None:
        raise RequestError(f"{param}: is required", param=param, code="missing_required_parameter")
    return value


def base64_bytes(text: str, param: str) -> bytes:
    """
    Raises:
        RequestError: It is not base64.
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as exc:
        raise RequestError(f"{param}: not valid base64: {exc}", param=param, code="invalid_base64") from exc
