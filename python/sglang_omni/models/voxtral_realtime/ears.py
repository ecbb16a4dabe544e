"""From sound to the rows that the decoder hears, while the sound goes on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.recordings.mel import MelFilters, in_relation
from sglang_omni.models.recordings.recording import SAMPLE_RATE
from sglang_omni.models.voxtral_realtime.components.encoder import VoxtralEncoder
from sglang_omni.models.voxtral_realtime.components.tekken import Tekken
from sglang_omni.models.voxtral_realtime.memory import MOST_ROWS, MOST_STREAMS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from soxr import ResampleStream

    from sglang_omni.models.codecs.streamed import NetworkStream

# Samples from one frame to the next.
_HOP = 160


class HeardSound:
    """What one request hears. It is the ``SequenceState`` of its tokens: each has a row of sound.

    Args:
        reach: Samples that the first frame's window reads before the first sample, and the last one after it.

    Attributes:
        num_samples: Samples so far, without silence that was added.
        num_rows: Rows that can be made of the sound so far.
        ended: True if no more sound comes, so that there are no more rows.
        rows: (hidden size,) each, those that are made.
        stream: The encoder's state; None before the first row.
        resampler: Of sound that comes at another rate; None at ``SAMPLE_RATE``.
    """

    def __init__(self, tekken: Tekken, reach: int) -> None:
        self._tekken, self._reach = tekken, reach
        # Silence before the sound.
        self._held = [np.zeros(reach + tekken.left * tekken.samples, np.float32)]
        self._num_held = len(self._held[0])
        self.num_samples = 0
        self.ended = False
        self.rows: list[Tensor] = []
        self.stream: NetworkStream | None = None
        self.resampler: ResampleStream | None = None

    @property
    def num_rows(self) -> int:
        return len(self.rows) + max(0, self._num_held - self._overlap) // self._tekken.samples

    def is_ready(self, num_tokens: int) -> bool:
        return num_tokens <= self.num_rows

    @property
    def seconds(self) -> float:
        return self.num_samples / SAMPLE_RATE

    def is_last(self, num_tokens: int) -> bool:
        """True if nothing is heard after so many tokens."""
        return self.ended and num_tokens >= self.num_rows

    def hear(self, samples: NDArray[np.float32]) -> None:
        """Adds samples (n,) in [-1, 1] at the rate at which they come."""
        self.add(samples if self.resampler is None else self.resampler.resample_chunk(samples))

    def add(self, samples: NDArray[np.float32]) -> None:
        """Adds samples (n,) in [-1, 1] at ``SAMPLE_RATE``."""
        self.num_samples += len(samples)
        self._add(samples)

    def end(self) -> None:
        """No more sound comes: the last words are written in the silence after it."""
        if self.resampler is not None:
            self.add(self.resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        missing = -self.num_samples % self._tekken.samples
        self._add(np.zeros(missing + self._tekken.right * self._tekken.samples + self._reach, np.float32))
        self.ended = True

    def take(self, count: int) -> Tensor:
        """The samples of the next ``count`` rows, float32, and those that their windows read beyond."""
        held = np.concatenate(self._held) if len(self._held) > 1 else self._held[0]
        new = count * self._tekken.samples
        self._held, self._num_held = [held[new:]], len(held) - new
        return torch.from_numpy(held[: new + self._overlap])

    @property
    def _overlap(self) -> int:
        """Samples that the windows of a row's frames read beyond the row's own."""
        return 2 * self._reach - _HOP

    def _add(self, samples: NDArray[np.float32]) -> None:
        self._held.append(samples)
        self._num_held += len(samples)


class Ears:
    """The ``RowSource`` of the decoder: encodes sound as its tokens come to it, of several requests at once.

    Args:
        loudest: As ``VoxtralRealtimeCheckpoint`` has it.
    """

    def __init__(self, encoder: VoxtralEncoder, filters: MelFilters, loudest: float) -> None:
        self._encoder, self._filters, self._loudest = encoder, filters, loudest

    def __call__(self, spans: Sequence[SequenceSpan]) -> Tensor:
        needed = [(cast(HeardSound, span.state), span.start + span.num_tokens) for span in spans]
        while waiting := [sound for sound, end in needed if len(sound.rows) < end]:
            self._encode(waiting)
        return torch.stack(
            [
                row
                for (sound, end), span in zip(needed, spans, strict=True)
                for row in sound.rows[span.start : end]
            ]
        )

    def _encode(self, sounds: Sequence[HeardSound]) -> None:
        """Encodes what these sounds have, as far as goes at once."""
        alike: dict[int, list[HeardSound]] = defaultdict(list)
        for sound in sounds:
            # Few sizes: equal ones are encoded together.
            count = sound.num_rows - len(sound.rows)
            alike[min(MOST_ROWS, 1 << count.bit_length() - 1)].append(sound)
        for count, together in alike.items():
            for first in range(0, len(together), MOST_STREAMS):
                self._encode_alike(together[first : first + MOST_STREAMS], count)

    def _encode_alike(self, sounds: Sequence[HeardSound], count: int) -> None:
        frames = torch.stack([self._filters.log_power(sound.take(count)) for sound in sounds])
        features = in_relation(frames, self._loudest).to(self._encoder.dtype)
        # A new stream's state is that of silence: it needs no batch of its own.
        streams = [sound.stream or self._encoder.open_stream() for sound in sounds]
        rows = self._encoder.advance(streams, features)
        for sound, stream, new in zip(sounds, streams, rows, strict=True):
            sound.stream = stream
            sound.rows += new.unbind()
