"""Conversion of messages with audio to text messages, by the audio's transcripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_transcripts(
    messages: Sequence[Mapping[str, Any]], transcripts: Sequence[str]
) -> tuple[list[dict[str, Any]], str | None]:
    """The messages as text, and the transcript of the user's last message, None if that has no audio.

    Args:
        messages: Their contents are lists of texts and of indices into ``transcripts``.
    """
    plain = []
    transcript: str | None = None
    for message in messages:
        # A clip without speech must not become an empty turn, which models answer at random.
        texts = [
            part if isinstance(part, str) else transcripts[part] or "(no speech was heard)"
            for part in message["content"]
        ]
        plain.append({**message, "content": "\n".join(texts)})
        if message["role"] == "user":
            indices = [part for part in message["content"] if isinstance(part, int)]
            transcript = " ".join(filter(None, (transcripts[i] for i in indices))) if indices else None
    return plain, transcript


def plain_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a conversation without audio, as text."""
    return with_transcripts(messages, ())[0]
