"""Names of blended voices: ``a,b`` is the mean of both, ``a(2)+b(1)`` has two parts of a and one of b."""

from __future__ import annotations

import re
from typing import NamedTuple

from sglang_omni.proto import RequestError

_SEPARATORS = re.compile(r"[,+]")
_PART = re.compile(r"\s*([^()\s]+)\s*(?:\(\s*(\d+(?:\.\d+)?|\.\d+)\s*\)\s*)?")


class VoicePart(NamedTuple):
    """A voice, and its share in a blend, above 0."""

    name: str
    share: float


def voice_parts(voice: str, param: str = "voice") -> list[VoicePart]:
    """The voices of a name, in lower case: one, or several of a blend.

    Args:
        param: The field that has it, for errors.

    Raises:
        RequestError: It is no name, and no blend.
    """
    parts = []
    for text in _SEPARATORS.split(voice.lower()):
        found = _PART.fullmatch(text)
        share = float(found[2]) if found and found[2] else 1.0
        if found is None or not share:
            raise RequestError(
                f"{param}: {voice!r} is no voice; a blend is written as a,b or, with shares above 0, as "
                "a(2)+b(1)",
                param=param,
                code="invalid_value",
            )
        parts.append(VoicePart(found[1], share))
    return parts
