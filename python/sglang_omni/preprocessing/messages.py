"""Parsing of OpenAI's chat messages: checks them and takes their media out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sglang_omni.proto import RequestError

_ROLES = ("system", "developer", "user", "assistant", "tool")
MediaKind = Literal["image", "audio", "video"]
Detail = Literal["auto", "low", "high"]
# Types of media parts: the kind of medium, and the field that holds its source.
_MEDIA_PARTS: dict[str, tuple[MediaKind, str]] = {
    "input_audio": ("audio", "data"),
    "audio_url": ("audio", "url"),
    "image_url": ("image", "url"),
    "video_url": ("video", "url"),
}


@dataclass(frozen=True)
class MediaPart:
    """An encoded medium, the name of its field in the request, and the detail in which an image is seen."""

    kind: MediaKind
    source: str | bytes
    param: str
    detail: Detail = "auto"


# Keys of a message that are read here; the others reach the chat template as they are.
_READ = ("role", "content", "audio", "tool_calls", "reasoning_content", "reasoning")

# A message's content in order: text, or the index of a media part.
Content = list[str | int]


def parse_messages(
    messages: Any, takes: Collection[MediaKind]
) -> tuple[list[dict[str, Any]], list[MediaPart]]:
    """Checks a conversation and takes its media out.

    Args:
        messages: OpenAI chat messages. If a media part came from another field of the request, its ``param``
            names that field.
        takes: Kinds of media that the model understands.

    Returns:
        The messages, each content a list of texts and of indices into the second result.

    Raises:
        RequestError: A message or part is malformed, or the model does not take its kind.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise RequestError(
            "messages must be a list of at least one message", param="messages", code="invalid_value"
        )
    parser = _Parser(takes)
    parsed = [parser.message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    return parsed, parser.media


def with_parts(messages: Sequence[Mapping[str, Any]], media: Sequence[MediaPart]) -> list[dict[str, Any]]:
    """The messages for chat templates: each content is a text, or a list of parts, of which media have only a
    type.

    Args:
        messages, media: As of ``parse_messages``.
    """
    return [{**message, "content": _parts(message["content"], media)} for message in messages]


def _parts(content: Content, media: Sequence[MediaPart]) -> str | list[dict[str, str]]:
    if len(content) == 1 and isinstance(content[0], str):
        return content[0]
    return [
        {"type": "text", "text": piece} if isinstance(piece, str) else {"type": media[piece].kind}
        for piece in content
    ]


class _Parser:
    def __init__(self, takes: Collection[MediaKind]) -> None:
        self.media: list[MediaPart] = []
        names = ["text", *(name for name, (kind, _) in _MEDIA_PARTS.items() if kind in takes)]
        self._takes = takes
        self._expected = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

    def message(self, message: Any, param: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise RequestError(
                f"{param} must be an object with role and content", param=param, code="invalid_type"
            )
        role = message.get("role")
        if role not in _ROLES:
            raise RequestError(
                f"{param}.role must be one of {', '.join(_ROLES)}, got {role!r}",
                param=f"{param}.role",
                code="invalid_value",
            )
        content = message.get("content")
        if role == "assistant" and content is None:
            content = _earlier_answer(message, param)
        # Chat templates do not know "developer", OpenAI's newer name of "system".
        rest = {key: value for key, value in message.items() if key not in _READ}
        if message.get("tool_calls"):
            rest["tool_calls"] = _calls(message["tool_calls"], f"{param}.tool_calls")
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if reasoning:
            # As templates call it.
            rest["reasoning_content"] = reasoning
        return {
            **rest,
            "role": "system" if role == "developer" else role,
            "content": self._content(content, f"{param}.content"),
        }

    def _content(self, content: Any, param: str) -> Content:
        if isinstance(content, str):
            return [content]
        if not isinstance(content, Sequence) or not content:
            raise RequestError(
                f"{param} must be text or a list of at least one part", param=param, code="invalid_type"
            )
        return [self._part(part, f"{param}[{index}]") for index, part in enumerate(content)]

    def _part(self, part: Any, where: str) -> str | int:
        name = part.get("type") if isinstance(part, Mapping) else None
        if name == "text":
            return _field(part, "text", where)
        kind, field = _MEDIA_PARTS.get(str(name), (None, ""))
        if kind is None or kind not in self._takes:
            raise RequestError(
                f"{where}.type is {name!r}: this model takes {self._expected} parts",
                param=f"{where}.type",
                code="unsupported_value",
            )
        body = part.get(name)
        if not isinstance(body, Mapping):
            raise RequestError(
                f"{where}.{name} must be an object with {field!r}",
                param=f"{where}.{name}",
                code="invalid_type",
            )
        source = _field(body, field, f"{where}.{name}", (str, bytes))
        param = part.get("param") or f"{where}.{name}.{field}"
        self.media.append(MediaPart(kind, source, param, _detail(body, f"{where}.{name}.detail")))
        return len(self.media) - 1


def _earlier_answer(message: Mapping[str, Any], param: str) -> str:
    """The text of an earlier spoken answer, which clients send back without content."""
    spoken = message.get("audio")
    if isinstance(spoken, Mapping) and isinstance(spoken.get("transcript"), str):
        return spoken["transcript"]
    if message.get("tool_calls"):
        return ""
    raise RequestError(
        f"{param}.content is missing: send the earlier answer's text, or its audio.transcript",
        param=f"{param}.content",
        code="missing_required_parameter",
    )


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """The calls of an earlier answer, with their arguments as they were sent."""
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise RequestError(f"{where} must be a list", param=where, code="invalid_type")
    read = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            each = f"{where}[{index}]"
            raise RequestError(
                f"{each} must be {{'id': ..., 'type': 'function', 'function': {{'name': ..., "
                "'arguments': ...}}",
                param=each,
                code="invalid_value",
            )
        read.append({"type": "function", **call})
    return read


def _detail(body: Mapping[str, Any], where: str) -> Detail:
    detail = body.get("detail")
    if detail is None:
        return "auto"
    if detail not in ("auto", "low", "high"):
        raise RequestError(
            f"{where} must be 'auto', 'low' or 'high', got {detail!r}", param=where, code="invalid_value"
        )
    return detail


def _field(part: Mapping[str, Any], name: str, where: str, types: tuple[type, ...] = (str,)) -> Any:
    value = part.get(name)
    if not isinstance(value, types):
        raise RequestError(
            f"{where}.{name} must be text, got {type(value).__name__}",
            param=f"{where}.{name}",
            code="invalid_type",
        )
    return value
