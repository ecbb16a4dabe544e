"""What a realtime session sends: its events, typed, and a whole answer."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.client.realtime.settings import RATE
from sglang_omni.client.types import UsageInfo
from sglang_omni.generation.samples import Samples, decode_pcm


@dataclass
class RealtimeEvent:
    """An event of the server; those without a class of their own below are of this one.

    Attributes:
        type: OpenAI's name of it, such as ``session.updated``.
        fields: All of it, as it came.
    """

    type: str
    fields: dict[str, Any] = field(repr=False)


@dataclass
class SpeakerStarted(RealtimeEvent):
    """The server hears that a speaker begins; ``at_ms`` from the beginning of all sound that was sent.

    The answer under way, if there is one, ends here: stop playing it, and call ``RealtimeSession.interrupt``.
    """

    at_ms: int


@dataclass
class SpeakerStopped(RealtimeEvent):
    """The speaker has ended; ``at_ms`` as in ``SpeakerStarted``."""

    at_ms: int


@dataclass
class Heard(RealtimeEvent):
    """What a speaker has said."""

    text: str
    item_id: str


@dataclass
class AnswerStarted(RealtimeEvent):
    """An answer begins."""

    response_id: str


@dataclass
class AnswerText(RealtimeEvent):
    """The next piece of an answer's text, be it written or spoken."""

    text: str
    item_id: str


@dataclass
class AnswerSound(RealtimeEvent):
    """The next piece of an answer's sound.

    Attributes:
        samples: float32 of shape (samples,), from -1 to 1.
        sample_rate: In Hz.
    """

    samples: Samples = field(repr=False)
    sample_rate: int
    item_id: str


@dataclass
class FunctionCalled(RealtimeEvent):
    """The answer calls a function; ``arguments`` is JSON text. ``RealtimeSession.return_from`` answers it."""

    name: str
    call_id: str
    arguments: str


@dataclass
class AnswerDone(RealtimeEvent):
    """An answer is over.

    Attributes:
        status: ``completed``, ``cancelled``, ``incomplete`` or ``failed``.
        reason: Why it is not completed, in a word or a sentence.
        usage: Token counts.
    """

    response_id: str
    status: str
    reason: str | None
    usage: UsageInfo | None


@dataclass
class RealtimeFault(RealtimeEvent):
    """Something that was sent is wrong; the session goes on."""

    message: str
    code: str | None
    param: str | None


@dataclass
class RealtimeAnswer:
    """A whole answer.

    Attributes:
        text: Written, or of what is spoken.
        heard: What the speaker had said; None if the turn was text.
        samples: float32 of shape (samples,); None if the answer is text alone.
        sample_rate: In Hz.
        status: As in ``AnswerDone``, and so are ``reason`` and ``usage``.
        calls: The functions that it calls.
    """

    text: str = ""
    heard: str | None = None
    samples: Samples | None = field(default=None, repr=False)
    sample_rate: int = RATE
    status: str = "completed"
    reason: str | None = None
    usage: UsageInfo | None = None
    calls: list[FunctionCalled] = field(default_factory=list)


def typed_event(fields: dict[str, Any]) -> RealtimeEvent:
    """The event in its own class, under OpenAI's names of today or of the protocol's earlier form."""
    kind = str(fields.get("type"))
    match kind:
        case "input_audio_buffer.speech_started":
            return SpeakerStarted(kind, fields, fields["audio_start_ms"])
        case "input_audio_buffer.speech_stopped":
            return SpeakerStopped(kind, fields, fields["audio_end_ms"])
        case "conversation.item.input_audio_transcription.completed":
            return Heard(kind, fields, fields["transcript"], fields["item_id"])
        case "response.created":
            return AnswerStarted(kind, fields, fields["response"]["id"])
        case (
            "response.output_text.delta"
            | "response.output_audio_transcript.delta"
            | "response.text.delta"
            | "response.audio_transcript.delta"
        ):
            return AnswerText(kind, fields, fields["delta"], fields["item_id"])
        case "response.output_audio.delta" | "response.audio.delta":
            samples = decode_pcm(base64.b64decode(fields["delta"]))
            return AnswerSound(kind, fields, samples, RATE, fields["item_id"])
        case "response.output_item.done" if fields["item"].get("type") == "function_call":
            item = fields["item"]
            return FunctionCalled(kind, fields, item["name"], item["call_id"], item["arguments"])
        case "response.done":
            response = fields["response"]
            usage = _usage(response.get("usage"))
            return AnswerDone(kind, fields, response["id"], response["status"], _reason(response), usage)
        case "error":
            error = fields["error"]
            return RealtimeFault(kind, fields, error["message"], error.get("code"), error.get("param"))
    return RealtimeEvent(kind, fields)


def _reason(response: Mapping[str, Any]) -> str | None:
    details = response.get("status_details") or {}
    error = details.get("error") or {}
    return error.get("message") or details.get("reason") or error.get("code")


def _usage(fields: Mapping[str, Any] | None) -> UsageInfo | None:
    if not fields:
        return None
    return UsageInfo(
        fields.get("input_tokens"),
        fields.get("output_tokens"),
        fields.get("total_tokens"),
        (fields.get("input_token_details") or {}).get("cached_tokens"),
    )
