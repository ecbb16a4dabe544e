"""How much of a text must wait because later text may change what it means."""

from __future__ import annotations


def partial_mark(text: str, mark: str) -> int:
    """The number of last characters of ``text`` that may be the beginning of ``mark``."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


def settled(text: str, mark: str) -> int:
    """The number of first characters of ``text``, which has no ``mark``, that a mark after them leaves as
    they are: white space before a mark belongs to it."""
    return len(text[: len(text) - partial_mark(text, mark)].rstrip())
