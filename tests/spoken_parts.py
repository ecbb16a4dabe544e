"""What a reference says to a text that is spoken in parts, each after the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def frames_of_parts(oracle: Any, parts: Sequence[str], most: int) -> list[list[int]]:
    """The frames of all parts.

    Args:
        oracle: Of CSM or Higgs Audio v2.
        most: Frames of each part.
    """
    said = oracle.speak(parts[0], most)
    frames = list(said.frames)
    for before, part in pairwise(parts):
        # A part without a sound says nothing about a voice.
        heard = said.frames
        said = oracle.speak_after(heard, before, part, most) if heard else oracle.speak(part, most)
        frames += said.frames
    return frames
