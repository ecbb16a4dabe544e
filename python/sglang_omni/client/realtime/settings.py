"""A realtime session's configuration, as OpenAI's object ``session``."""

from __future__ import annotations

from typing import Any

# Sound goes in and out as PCM16 at this rate, in Hz.
RATE = 24_000
_FORMAT = {"type": "audio/pcm", "rate": RATE}
# OpenAI's servers need a recognizer's name; this package's write down what they hear with their own.
_RECOGNIZER = "whisper-1"


def session_fields(
    instructions: str | None,
    voice: str | None,
    speak: bool,
    detect_turns: bool | dict[str, Any],
    more: dict[str, Any] | None,
) -> dict[str, Any]:
    """The object ``session``; the arguments are those of ``Client.realtime``."""
    hearing: dict[str, Any] = {"format": _FORMAT, "transcription": {"model": _RECOGNIZER}}
    if detect_turns is not True:
        hearing["turn_detection"] = detect_turns or None
    fields: dict[str, Any] = {
        "type": "realtime",
        "output_modalities": ["audio" if speak else "text"],
        "audio": {"input": hearing},
    }
    if speak:
        fields["audio"]["output"] = {"format": _FORMAT} | ({"voice": voice} if voice else {})
    if instructions is not None:
        fields["instructions"] = instructions
    return _merged(fields, more or {})


def _merged(fields: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """``fields``, overridden by ``more`` at every depth."""
    merged = dict(fields)
    for name, value in more.items():
        old = merged.get(name)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[name] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged
