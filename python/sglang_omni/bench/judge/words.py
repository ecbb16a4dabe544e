"""Which words of a text are missing in a transcript of it."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def words_of(text: str) -> list[str]:
    """Its words in small letters, without marks between them."""
    return [word.replace("’", "'") for word in _WORD.findall(text.lower())]


def words_lost(text: str, transcript: str) -> int:
    """How many words of ``text`` are not in ``transcript`` in their order.

    The alignment keeps the most words that both have in the same order (a longest common subsequence); words
    that the transcript has besides cost nothing.
    """
    said, written = words_of(text), words_of(transcript)
    kept = [0] * (len(written) + 1)
    for word in said:
        before = kept
        kept = [0]
        for place, other in enumerate(written):
            kept.append(before[place] + 1 if word == other else max(before[place + 1], kept[-1]))
    return len(said) - kept[-1]
