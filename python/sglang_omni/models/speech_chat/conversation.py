"""Messages with text and audio parts -> plain text messages, once the audio has been heard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_omni.proto import RequestError

_ROLES = ("system", "developer", "user", "assistant", "tool")
_AUDIO_PARTS = ("input_audio", "audio_url")


@dataclass(frozen=True)
class AudioPart:
    """An audio part as it was sent, and the name of its field."""

    source: str | bytes
    param: str


# A message's content in order: text, or the index of an audio part.
Content = list[str | int]


def parse_messages(messages: Any) -> tuple[list[dict[str, Any]], list[AudioPart]]:
    """Check a conversation and take its audio parts out.

    Args:
        messages: OpenAI chat messages.

    Returns:
        The messages, each content a list of texts and of indices into the second result.

    Raises:
        RequestError: A message or part is malformed, or of a kind that this model does not take.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    audio: list[AudioPart] = []
    return [_message(message, f"messages[{index}]", audio) for index, message in enumerate(messages)], audio


def with_transcripts(
    messages: Sequence[Mapping[str, Any]], transcripts: Sequence[str]
) -> tuple[list[dict[str, Any]], str | None]:
    """The messages as plain text, and what was heard in the last of them that came from the user.

    ``transcripts[i]`` is put where the audio part ``i`` was; None is what was heard where there was none.
    """
    plain = []
    heard: str | None = None
    for message in messages:
        # A clip without speech must not leave an empty turn, which models answer at random.
        texts = [
            part if isinstance(part, str) else transcripts[part] or "(no speech was heard)"
            for part in message["content"]
        ]
        plain.append({**message, "content": "\n".join(texts)})
        if message["role"] == "user":
            indices = [part for part in message["content"] if isinstance(part, int)]
            heard = " ".join(filter(None, (transcripts[index] for index in indices))) if indices else None
    return plain, heard


def _message(message: Any, param: str, audio: list[AudioPart]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{param} must be an object with role and content", param=param)
    role = message.get("role")
    if role not in _ROLES:
        raise RequestError(
            f"{param}.role must be one of {', '.join(_ROLES)}, got {role!r}", param=f"{param}.role"
        )
    content = message.get("content")
    if role == "assistant" and content is None:
        content = _said_before(message, param)
    # Chat templates know no "developer", OpenAI's later name for the same thing.
    rest = {key: value for key, value in message.items() if key not in ("role", "content", "audio")}
    return {
        **rest,
        "role": "system" if role == "developer" else role,
        "content": _content(content, f"{param}.content", audio),
    }


def _said_before(message: Mapping[str, Any], param: str) -> str:
    """The text of an earlier spoken answer, which clients send back without its content."""
    spoken = message.get("audio")
    if isinstance(spoken, Mapping) and isinstance(spoken.get("transcript"), str):
        return spoken["transcript"]
    if message.get("tool_calls"):
        return ""
    raise RequestError(
        f"{param}.content is missing: send the earlier answer's text, or its audio.transcript",
        param=f"{param}.content",
    )


def _content(content: Any, param: str, audio: list[AudioPart]) -> Content:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence) or not content:
        raise RequestError(f"{param} must be text or a list of at least one part", param=param)
    parts: Content = []
    for index, part in enumerate(content):
        where = f"{param}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            parts.append(_field(part, "text", where))
        elif kind in _AUDIO_PARTS:
            parts.append(len(audio))
            audio.append(_audio_part(part, kind, where))
        else:
            raise RequestError(
                f"{where}.type is {kind!r}: this model takes text, input_audio and audio_url parts",
                param=f"{where}.type",
            )
    return parts


def _audio_part(part: Mapping[str, Any], kind: str, where: str) -> AudioPart:
    body = part.get(kind)
    field = "data" if kind == "input_audio" else "url"
    if not isinstance(body, Mapping):
        raise RequestError(f"{where}.{kind} must be an object with {field!r}", param=f"{where}.{kind}")
    return AudioPart(_field(body, field, f"{where}.{kind}", (str, bytes)), f"{where}.{kind}.{field}")


def _field(part: Mapping[str, Any], name: str, where: str, types: tuple[type, ...] = (str,)) -> Any:
    value = part.get(name)
    if not isinstance(value, types):
        raise RequestError(
            f"{where}.{name} must be text, got {type(value).__name__}", param=f"{where}.{name}"
        )
    return value


def plain_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a conversation without audio, as plain text."""
    return with_transcripts(messages, ())[0]
