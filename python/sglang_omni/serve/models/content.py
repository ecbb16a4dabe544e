"""Messages of a conversation, and the parts of their content."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sglang_omni.serve.models.fields import (
    TAG,
    ApiModel,
    Name,
    OnlyEmptyList,
    at_most,
)
from sglang_omni.serve.models.tools import CalledFunction, MessageToolCalls


class TextPart(ApiModel):
    type: Literal["text"]
    text: str
    """What is said."""


class RefusalPart(ApiModel):
    type: Literal["refusal"]
    refusal: str
    """What an earlier answer refused with."""


class InputAudio(ApiModel):
    """``data`` is base64, or a ``data:`` or ``http(s):`` URL."""

    data: Annotated[str, Field(min_length=1)]
    """Base64, or a ``data:`` or ``http(s):`` URL."""
    format: Name | None = None
    """Accepted, no effect: the content shows its format."""


class InputAudioPart(ApiModel):
    type: Literal["input_audio"]
    input_audio: InputAudio
    """A recording."""


class MediaUrl(ApiModel):
    url: Annotated[str, Field(min_length=1)]
    """A ``data:`` URL, or an ``http(s):`` URL of a host that the server may fetch from."""


class ImageUrl(MediaUrl):
    """``detail``: a ``"low"`` image is scaled down to at most 512 x 512 pixels."""

    detail: Literal["auto", "low", "high"] | None = None
    """A ``low`` image is scaled down to at most 512 x 512 pixels."""


class AudioUrlPart(ApiModel):
    type: Literal["audio_url"]
    audio_url: MediaUrl
    """A recording."""


class ImageUrlPart(ApiModel):
    type: Literal["image_url"]
    image_url: ImageUrl
    """A picture."""


class VideoUrlPart(ApiModel):
    type: Literal["video_url"]
    video_url: MediaUrl
    """A video."""


_PARTS = ("text", "refusal", "input_audio", "audio_url", "image_url", "video_url")


def _part_tag(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return TAG + kind if kind in _PARTS else None


ContentPart = Annotated[
    Annotated[TextPart, Tag("§text")]
    | Annotated[RefusalPart, Tag("§refusal")]
    | Annotated[InputAudioPart, Tag("§input_audio")]
    | Annotated[AudioUrlPart, Tag("§audio_url")]
    | Annotated[ImageUrlPart, Tag("§image_url")]
    | Annotated[VideoUrlPart, Tag("§video_url")],
    Discriminator(
        _part_tag,
        custom_error_type="content_part_type",
        custom_error_message=f"must be an object whose type is one of: {', '.join(_PARTS)}",
    ),
]


def _content_tag(content: Any) -> str | None:
    if isinstance(content, list):
        return "§parts"
    return "§content" if isinstance(content, str) else None


Content = Annotated[
    Annotated[str, Tag("§content")] | Annotated[list[ContentPart], Tag("§parts"), at_most(1024, least=1)],
    Discriminator(
        _content_tag,
        custom_error_type="content_type",
        custom_error_message="must be a string or a list of content parts",
    ),
]


class SpokenAnswer(ApiModel):
    """The speech of an earlier answer, sent back. Answers are not kept, so only the transcript is read."""

    id: Name | None = None
    """Accepted, no effect."""
    transcript: str | None = None
    """What was said; it stands for the turn."""
    data: str | None = None
    """Accepted, no effect."""
    expires_at: int | None = None
    """Accepted, no effect."""
    codes: Annotated[list[Annotated[list[int], at_most(256)]], at_most(2**15)] | None = None
    """Accepted, no effect."""


class ChatMessage(ApiModel):
    """One turn. Only an assistant's turn may lack content, if it has calls, a transcript or a refusal."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """Who speaks; ``developer`` is ``system``, ``function`` is OpenAI's older ``tool``."""
    content: Content | None = None
    """A text, or parts of text and media."""
    name: Name | None = None
    """Of the speaker or the function; refused if the chat template has no place for it."""
    refusal: str | None = None
    """What an earlier answer refused with."""
    tool_call_id: Name | None = None
    """Which call a tool's message answers."""
    tool_calls: MessageToolCalls | None = None
    """The calls of an earlier answer."""
    function_call: CalledFunction | None = None
    """OpenAI's older form of a call."""
    reasoning: str | None = None
    """The reasoning of an earlier answer."""
    reasoning_content: str | None = None
    """Another name of ``reasoning``."""
    audio: SpokenAnswer | None = None
    """The speech of an earlier answer."""
    annotations: OnlyEmptyList = None
