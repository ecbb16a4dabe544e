"""Cutting of a recording of any length into pieces of a bounded length, at its quietest moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sglang_omni.models.recordings.recording import SAMPLE_RATE, SoundReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FRAME = SAMPLE_RATE // 50
# A pause is this many quiet frames: 0.3 s, more than the closure of a consonant.
_PAUSE_FRAMES = 15


class SoundPiece(NamedTuple):
    """``start`` is in seconds of the recording; ``samples`` are (n,) float32."""

    start: float
    samples: NDArray[np.float32]

    @property
    def end(self) -> float:
        return self.start + len(self.samples) / SAMPLE_RATE


class QuietPieces:
    """The pieces of a recording, which is decoded as far as the piece that is asked for.

    A piece ends in a pause of its last half, unless it ends with the recording.

    Args:
        longest: Samples of a piece, at least two seconds of them.
    """

    def __init__(self, sound: SoundReader, longest: int) -> None:
        self._sound = sound
        self._longest = longest
        self._held = np.zeros(0, np.float32)
        self._given = 0

    @property
    def seconds(self) -> float:
        """The length of what has been decoded: of the whole recording once it has ended."""
        return self._sound.seconds

    def next(self) -> SoundPiece | None:
        """The next piece; None after the last.

        Raises:
            RequestError: The recording cannot be decoded, is too long, or takes too much time.
        """
        missing = self._longest + 1 - len(self._held)
        if missing > 0 and not self._sound.ended:
            self._held = np.concatenate([self._held, self._sound.read(missing)])
        if not len(self._held):
            return None
        end = len(self._held)
        if end > self._longest:
            end = quietest_pause(self._held[: self._longest], self._longest // 2)
        piece = SoundPiece(self._given / SAMPLE_RATE, self._held[:end])
        self._held, self._given = self._held[end:], self._given + end
        return piece


def quietest_pause(samples: NDArray[np.float32], least: int) -> int:
    """The middle of the last of the quietest pauses that lie after ``least`` samples."""
    late = samples[least:]
    frames = late[: len(late) // _FRAME * _FRAME].reshape(-1, _FRAME)
    power = np.convolve(np.square(frames).mean(axis=1), np.full(_PAUSE_FRAMES, 1 / _PAUSE_FRAMES), "valid")
    # Pauses of the same room differ a little; the last makes the longest piece.
    (quiet,) = np.nonzero(power <= 2 * power.min())
    return least + (int(quiet[-1]) + _PAUSE_FRAMES // 2) * _FRAME
