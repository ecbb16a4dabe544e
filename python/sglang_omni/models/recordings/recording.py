"""An encoded recording of any length, decoded piece by piece as it is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sglang_omni.preprocessing.audio import decode_blocks
from sglang_omni.preprocessing.deadline import Deadline

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Hz. All models of speech here hear at this rate.
SAMPLE_RATE = 16_000


class SoundReader:
    """Reads a recording from its beginning to its end; what has been read is not kept.

    Args:
        data: The encoded file. It is read at ``SAMPLE_RATE``.
        max_seconds: The longest recording that is accepted.
        decode_seconds: The most time that one ``read`` may take.
        min_seconds: The shortest recording that is accepted.

    Attributes:
        num_samples: Samples read so far.
        ended: True once there are no more.
    """

    def __init__(
        self,
        data: bytes,
        *,
        max_seconds: float,
        decode_seconds: float,
        min_seconds: float = 0.05,
    ) -> None:
        self._decode_seconds = decode_seconds
        self._blocks = decode_blocks(
            data,
            param="file",
            sample_rate=SAMPLE_RATE,
            max_seconds=max_seconds,
            min_seconds=min_seconds,
            check=self._check,
        )
        self.num_samples = 0
        self.ended = False

    @property
    def seconds(self) -> float:
        """The length of what has been read: of the whole recording once it has ended."""
        return self.num_samples / SAMPLE_RATE

    def read(self, count: int) -> NDArray[np.float32]:
        """At least ``count`` samples in [-1, 1], shape (n,); fewer at the end of the recording.

        Raises:
            RequestError: The recording cannot be decoded, is too long, or takes too much time.
        """
        self._deadline = Deadline(self._decode_seconds, param="file")
        pieces: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        held = 0
        while held < count and not self.ended:
            block = next(self._blocks, None)
            if block is None:
                self.ended = True
                break
            pieces.append(block)
            held += len(block)
        self.num_samples += held
        return np.concatenate(pieces)

    def _check(self) -> None:
        self._deadline()
