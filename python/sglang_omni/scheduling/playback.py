"""What a listener notices of streamed sound: when it begins, and when the player runs dry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Playback:
    """Follows a player that begins with the first piece of sound and plays each piece as soon as it can.

    All times are seconds of one clock. Sound that came later than it would have been played leaves the
    player with nothing for a while: an underrun. What is missing after the last piece is the stream's end.

    Args:
        began: Time of the request.

    Attributes:
        seconds: Length of all sound so far.
        underrun_s: Sum of the underruns.
        underruns: Their number.
        longest_underrun_s: The longest of them.
    """

    def __init__(self, began: float) -> None:
        self.seconds = 0.0
        self.underrun_s = 0.0
        self.underruns = 0
        self.longest_underrun_s = 0.0
        self._began = began
        self._first: float | None = None
        self._last = began
        # When the player will have played all sound so far.
        self._dry = began

    def feed(self, now: float, seconds: float) -> float:
        """Adds a piece of sound that came at ``now``. Returns the seconds of the underrun that it ended."""
        if seconds <= 0.0:
            return 0.0
        if self._first is None:
            self._first = self._dry = now
        gap = max(0.0, now - self._dry)
        if gap > 0.0:
            self.underruns += 1
            self.underrun_s += gap
            self.longest_underrun_s = max(self.longest_underrun_s, gap)
        self._dry = max(self._dry, now) + seconds
        self._last = now
        self.seconds += seconds
        return gap

    @property
    def first_sound(self) -> float | None:
        """Seconds from the request to its first sound; None before it."""
        return None if self._first is None else self._first - self._began

    def in_hand_s(self, now: float) -> float:
        """Seconds of sound that the player has and has not played yet."""
        return max(0.0, self._dry - now)

    @property
    def dry_at(self) -> float | None:
        """When the player will have played all sound so far; None before the first sound."""
        return None if self._first is None else self._dry

    @property
    def real_time_factor(self) -> float | None:
        """Seconds from the request to its last sound, for each second of sound; None before the first."""
        return (self._last - self._began) / self.seconds if self.seconds else None


def num_samples(chunk: Any) -> int:
    """How many samples of sound a chunk or a result has."""
    # A dict is looked for first: whether something is a Mapping takes longer to find out.
    sound = chunk.get("audio_data") if isinstance(chunk, (dict, Mapping)) else None
    if sound is None:
        return 0
    return math.prod(sound.shape) if hasattr(sound, "shape") else len(sound)
