"""The codec's decoder: frames of codes to speech, whole or as a stream of any pieces.

A frame is 1,920 samples at 24 kHz. Its codes become one row, which a transformer with a window sees together
with the rows before it, and transposed convolutions make samples of the rows. All of it is causal.

The authors decode speech of more than 300 frames in pieces, each with the 25 frames before it, which is near
to the whole. Here nothing is computed twice, and a speech of any length is the whole.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from sglang_omni.models.codecs.streamed import StreamedDecoder, StreamMemory
from sglang_omni.models.qwen3_tts.components.codec_config import CodecConfig
from sglang_omni.models.qwen3_tts.components.codec_weights import SpeechCodecWeights


class Qwen3TTSDecoder(StreamedDecoder):
    """From codes (n, groups, frames) int64 to samples (n, 1, frames * total_upsample) in [-1, 1].

    Attributes:
        sample_rate: In Hz.
        total_upsample: Samples of a frame.
        num_groups: Codes of a frame.

    Raises:
        ValueError: A tensor is missing, misshapen or unknown.
    """

    def __init__(self, weights: SpeechCodecWeights, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.total_upsample = weights.config.frame_samples
        self.num_groups = weights.config.num_quantizers
        self._semantic, self._acoustic = weights.quantizers()
        self._before = weights.before_transformer()
        self._transformer = weights.transformer()
        self._into, self._out = weights.projections()
        self._upsampling = weights.upsampling()
        self._first, self._blocks, self._last = weights.convolutions()
        weights.finish()
        device = self._first.weight.device
        super().__init__("the codec", torch.zeros(1, self.num_groups, 1, dtype=torch.int64, device=device))

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype, device: str) -> Qwen3TTSDecoder:
        """Reads the codec of the checkpoint in ``path``.

        Raises:
            FileNotFoundError, ValueError: As for the class, or a file is missing, or of another codec.
        """
        config = CodecConfig.from_dir(path)
        return cls(SpeechCodecWeights.open(config.path, config.decoder, dtype, device), config.sample_rate)

    @property
    def dtype(self) -> torch.dtype:
        return self._first.weight.dtype

    def __call__(self, codes: Tensor) -> Tensor:
        """The samples (n, 1, samples) of whole speeches at once."""
        return self.advance([self.open_stream() for _ in codes], codes)

    def run(self, inputs: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        split = len(self._semantic.codebooks)
        rows = self._semantic.decode(inputs[:, :split]) + self._acoustic.decode(inputs[:, split:])
        rows = self._before(rows.transpose(1, 2), memory).transpose(1, 2)
        rows = self._transformer(linear(rows, *self._into), positions, memory)
        wave = linear(rows, *self._out).transpose(1, 2)
        for transposed, convnext in self._upsampling:
            wave = convnext(transposed(wave, memory), memory)
        wave = self._first(wave, memory)
        for snake, transposed, units in self._blocks:
            wave = transposed(snake(wave), memory)
            for unit in units:
                wave = unit(wave, memory)
        snake, last = self._last
        return last(snake(wave), memory).clamp_(min=-1, max=1)
