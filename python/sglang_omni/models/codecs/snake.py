"""Snake, the activation of codecs' decoders: a wave plus a squared sine of itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Snake:
    """``x + sin(x * frequency)^2 * height``, in three passes over the wave.

    Args:
        frequency, height: (channels, 1).
    """

    def __init__(self, frequency: Tensor, height: Tensor) -> None:
        self._frequency = frequency
        self._height = height

    def __call__(self, wave: Tensor) -> Tensor:
        """(n, channels, length) to the same."""
        angle = wave * self._frequency
        if angle.device.type == "cpu" and angle.dtype == torch.float32:
            # Sines take most of a decoder's time, and NumPy's take a third of the time of torch's.
            array = angle.numpy()
            np.sin(array, out=array)
        else:
            angle.sin_()
        return torch.addcmul(wave, angle.square_(), self._height)
