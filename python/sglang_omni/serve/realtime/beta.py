"""The earlier form of the protocol, for clients that send ``OpenAI-Beta: realtime=v1``: other names."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

Fields = dict[str, Any]

_SUBPROTOCOL = "openai-beta.realtime-v1"
_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
_FORMATS_OF = {now: then for then, now in _FORMATS.items()}
# Fields of the session that moved into its ``audio``: the direction, and the name there.
_INPUT = {
    "input_audio_format": "format",
    "input_audio_transcription": "transcription",
    "input_audio_noise_reduction": "noise_reduction",
    "turn_detection": "turn_detection",
}
_OUTPUT = {"output_audio_format": "format", "voice": "voice", "speed": "speed"}
_EVENTS = {
    "conversation.item.added": "conversation.item.created",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
}
_PARTS = {"output_text": "text", "output_audio": "audio"}


def wants_beta(scope: Scope) -> bool:
    """True if a client asks for this form."""
    return (
        "realtime=v1" in Headers(scope=scope).get("openai-beta", "") or _SUBPROTOCOL in scope["subprotocols"]
    )


def as_now(event: Fields) -> Fields:
    """A client's event in the names of today."""
    for name in ("session", "response"):
        if isinstance(event.get(name), dict):
            event = {**event, name: _settings(event[name])}
    return event


def as_then(event: Fields) -> Fields | None:
    """A server's event in the earlier names; None if there was none like it."""
    if event["type"] == "conversation.item.done":
        return None
    event = {**event, "type": _EVENTS.get(event["type"], event["type"])}
    if "session" in event:
        event["session"] = _flat(event["session"])
    if "response" in event:
        response = dict(event["response"])
        response["modalities"] = _modalities(response.pop("output_modalities"))
        response["output"] = [_item(item) for item in response["output"]]
        event["response"] = response
    if "item" in event:
        event["item"] = _item(event["item"])
    return event


def _settings(fields: Fields) -> Fields:
    now = {name: value for name, value in fields.items() if name not in _INPUT | _OUTPUT}
    if isinstance(modalities := now.pop("modalities", None), list):
        now["output_modalities"] = ["audio" if "audio" in modalities else "text"]
    if "max_response_output_tokens" in now:
        now["max_output_tokens"] = now.pop("max_response_output_tokens")
    audio: Fields = {}
    for direction, names in (("input", _INPUT), ("output", _OUTPUT)):
        moved = {new: fields[old] for old, new in names.items() if old in fields}
        if isinstance(chosen := moved.get("format"), str):
            moved["format"] = {"type": _FORMATS.get(chosen, chosen)}
        if moved:
            audio[direction] = moved
    return {**now, "audio": audio} if audio else now


def _flat(session: Fields) -> Fields:
    then = {name: value for name, value in session.items() if name not in ("audio", "type", "truncation")}
    for direction, names in (("input", _INPUT), ("output", _OUTPUT)):
        now = session["audio"].get(direction, {})
        then |= {old: now[new] for old, new in names.items() if new in now}
    for name in ("input_audio_format", "output_audio_format"):
        if name in then:
            then[name] = _FORMATS_OF[then[name]["type"]]
    if "output_modalities" in then:
        then["modalities"] = _modalities(then.pop("output_modalities"))
        then["max_response_output_tokens"] = then.pop("max_output_tokens")
    return then


def _modalities(now: list[str]) -> list[str]:
    return ["text", "audio"] if "audio" in now else now


def _item(item: Fields) -> Fields:
    if "content" not in item:
        return item
    content = [{**part, "type": _PARTS.get(part["type"], part["type"])} for part in item["content"]]
    return {**item, "content": content}
