"""Whisper's features: the log-mel spectrogram of a recording, computed as far as it is needed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sglang_omni.models.recordings.mel import MelFilters, in_relation
from sglang_omni.models.recordings.recording import SAMPLE_RATE, SoundReader

# Log10 of the loudest mel band of a silent window. Dither of 16-bit samples is at -9, a sine wave 80 dB
# below the loudest possible above -6.
_SILENCE = -7.0
# Decoded at once, beyond what is needed.
_AHEAD_SAMPLES = 90 * SAMPLE_RATE


class HeardWindow(NamedTuple):
    """A stretch of a recording.

    Attributes:
        features: (num_bins, window_frames) float32.
        num_frames: Those of the recording.
        is_silent: True if there is no sound in them.
    """

    features: Tensor
    num_frames: int
    is_silent: bool


class MelReader:
    """The spectrogram of one recording, window by window, as ``WhisperFeatureExtractor`` has it.

    A recording of one window at most is filled up with silence, so that its features go on behind its end.
    Those of a longer one are its own alone; what a window has behind them is 0.

    Frames are in relation to the loudest sound of the first window and the 90 s after it, and then of what
    has been decoded so far; in transformers, to the loudest of the whole recording. In longer recordings,
    what is 80 dB quieter may therefore differ, where there is nothing to hear.

    Args:
        window_frames: Frames of a window.
    """

    def __init__(self, sound: SoundReader, filters: MelFilters, window_frames: int) -> None:
        self._sound = sound
        self._filters = filters
        self._window_frames = window_frames
        # Frames of which _first is the number of the first, before they are put in relation.
        self._frames = torch.zeros(filters.num_bins, 0)
        self._first = 0
        # Samples of which no frame has been made yet, from half a frame before the next frame's middle.
        self._samples: Tensor | None = None
        self._loudest = -np.inf

    @property
    def seconds(self) -> float:
        """The length of what has been decoded."""
        return self._sound.seconds

    def read_ahead(self, start: int) -> None:
        """Decodes the window from frame ``start`` on, if that has not been done."""
        self._make(start + self._window_frames)

    def window(self, start: int) -> HeardWindow:
        """The window from frame ``start`` on, which must not lie before the last one's.

        Raises:
            RequestError: The recording cannot be decoded, is too long, or takes too much time.
        """
        self._make(start + self._window_frames)
        self._frames = self._frames[:, start - self._first :]
        self._first = start
        frames = self._frames[:, : self._window_frames]
        count = frames.shape[1]
        if self._sound.ended:
            count = max(0, min(count, self._num_frames - start))
        is_silent = count == 0 or float(frames[:, :count].max()) < _SILENCE
        features = pad(in_relation(frames, self._loudest), (0, self._window_frames - frames.shape[1]))
        return HeardWindow(features, count, is_silent)

    def _make(self, stop: int) -> None:
        """Makes the frames before ``stop``, as far as the recording goes."""
        filters, half = self._filters, self._filters.fft // 2
        while self._first + self._frames.shape[1] < stop and not self._sound.ended:
            missing = stop - self._first - self._frames.shape[1]
            new = torch.from_numpy(self._sound.read(missing * filters.hop + _AHEAD_SAMPLES))
            total = self._sound.num_samples
            if self._sound.ended and total < self._window_frames * filters.hop:
                # It has been read in one go.
                total = self._window_frames * filters.hop
                new = pad(new, (0, total - len(new)))
            if self._samples is None:
                # As if the recording came to its beginning backwards, and so at its end.
                self._samples = torch.cat([new[1 : half + 1].flip(0), new])
            else:
                self._samples = torch.cat([self._samples, new])
            if self._sound.ended:
                samples = self._samples
                ending = samples[len(samples) - half - 1 : len(samples) - 1].flip(0)
                self._samples = torch.cat([samples, ending])
            count = (len(self._samples) - filters.fft) // filters.hop + 1
            if self._sound.ended:
                # The transform has a frame at the very end, which Whisper leaves out.
                count = min(count, total // filters.hop - self._made)
            if count <= 0:
                continue
            frames = filters.log_power(self._samples[: (count - 1) * filters.hop + filters.fft])
            self._samples = self._samples[count * filters.hop :]
            self._loudest = max(self._loudest, float(frames.max()))
            self._frames = torch.cat([self._frames, frames], dim=1)

    @property
    def _num_frames(self) -> int:
        """Those of the whole recording, once it has been read."""
        hop, samples = self._filters.hop, self._sound.num_samples
        # What is left of a hop is in the silence's first frame, if there is silence.
        return samples // hop if samples >= self._window_frames * hop else -(-samples // hop)

    @property
    def _made(self) -> int:
        return self._first + self._frames.shape[1]
