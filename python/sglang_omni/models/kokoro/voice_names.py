"""Names of voices, and of blends: ``a,b`` is the mean of both, ``a(2)+b(1)`` has two parts of a and one of b."""

from __future__ import annotations

import re
from typing import NamedTuple

_SEPARATORS = re.compile(r"[,+]")
_PART = re.compile(r"\s*([^()\s]+)\s*(?:\(\s*(\d+(?:\.\d+)?|\.\d+)\s*\)\s*)?")


class VoicePart(NamedTuple):
    """A voice, and its share in a blend, above 0."""

    name: str
    share: float


def voice_parts(voice: str) -> list[VoicePart]:
    """The voices of a name, in lower case.

    Raises:
        ValueError: It is no name, and no blend.
    """
    parts = []
    for text in _SEPARATORS.split(voice.lower()):
        found = _PART.fullmatch(text)
        share = float(found[2]) if found and found[2] else 1.0
        if not found or not share:
            raise ValueError("a blend of voices is written as a,b or with shares above 0 as a(2)+b(1)")
        parts.append(VoicePart(found[1], share))
    return parts
