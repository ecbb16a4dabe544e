"""Messages with audio in them -> plain text messages, once the audio has been heard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


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


def plain_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a conversation without audio, as plain text."""
    return with_transcripts(messages, ())[0]
