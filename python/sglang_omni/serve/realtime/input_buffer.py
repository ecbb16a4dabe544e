"""The sound that a client has sent and that is in no item yet."""

from __future__ import annotations

from collections import deque

import numpy as np

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.sound import RATE, Samples

# The longest turn.
MAX_SECONDS = 300.0


class InputBuffer:
    """Samples by their place in all that was ever added, which begins at 0."""

    def __init__(self) -> None:
        self._pieces: deque[Samples] = deque()
        self._start = 0
        self._end = 0

    @property
    def start(self) -> int:
        """The place of the first sample that is there."""
        return self._start

    @property
    def end(self) -> int:
        """The place after the last one."""
        return self._end

    @property
    def seconds(self) -> float:
        return (self._end - self._start) / RATE

    def add(self, samples: Samples) -> None:
        """
        Raises:
            RequestError: There would be more than one turn may have.
        """
        if self.seconds + len(samples) / RATE > MAX_SECONDS:
            raise RequestError(
                f"the input audio buffer has {self.seconds:.0f} s, and may have {MAX_SECONDS:.0f} s: commit "
                "or clear it",
                code="input_audio_buffer_full",
            )
        if len(samples):
            self._pieces.append(samples)
            self._end += len(samples)

    def since(self, start: int) -> Samples:
        """The samples from ``start`` on."""
        whole = np.concatenate([np.zeros(0, np.float32), *self._pieces])
        return whole[max(0, start - self._start) :]

    def take(self, start: int, end: int) -> Samples:
        """Take out the samples from ``start`` to ``end``, and drop what came before them."""
        self.drop(start)
        whole = np.concatenate([np.zeros(0, np.float32), *self._pieces])
        cut = max(0, min(end, self._end) - self._start)
        self._pieces = deque([whole[cut:]] if cut < len(whole) else [])
        self._start += cut
        return whole[:cut]

    def drop(self, until: int) -> None:
        """Drop the samples before a place."""
        while self._pieces and self._start < until:
            first = self._pieces.popleft()
            if len(first) > until - self._start:
                self._pieces.appendleft(first[until - self._start :])
                self._start = until
            else:
                self._start += len(first)

    def clear(self) -> None:
        self._pieces.clear()
        self._start = self._end
