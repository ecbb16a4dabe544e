"""The codec's vocoder, from mel frames to samples: whole, or in pieces that give the same samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sglang_omni.models.qwen2_5_omni.components.reference import Qwen2_5OmniToken2WavBigVGANModel

# How far an activation sees, which computes at twice the rate: by six taps before and six after, and a
# sample more for the padding of its ends.
_ACTIVATION = 7


class MelVocoder:
    """transformers' ``Qwen2_5OmniToken2WavBigVGANModel`` for batches.

    Attributes:
        hop: Samples of a mel frame.
        margin: Mel frames on either side on which a frame's samples depend. A piece that has as many beside
            those that are wanted, or begins or ends with the sound, gives the samples of the whole, up to
            rounding.
    """

    def __init__(self, module: Qwen2_5OmniToken2WavBigVGANModel) -> None:
        self._module = module
        self._device = module.conv_pre.weight.device
        config = module.config
        self.hop = math.prod(config.upsample_rates)
        rate, reach = 1, 3.0
        for stride, kernel in zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True):
            reach += (kernel // stride + 1) / rate
            rate *= stride
            blocks = map(_block_reach, config.resblock_kernel_sizes, config.resblock_dilation_sizes)
            reach += max(blocks) / rate
        self.margin = math.ceil(reach + (_ACTIVATION + 3) / rate)

    @torch.inference_mode()
    def __call__(self, mel: Tensor) -> Tensor:
        """Samples (n, frames * hop) in [-1, 1] of mel frames (n, frames, mel bins)."""
        module, blocks = self._module, self._module.num_residual_blocks
        wave = module.conv_pre(module.process_mel_spectrogram(mel.to(self._device).transpose(1, 2)))
        for index, (upsample,) in enumerate(module.ups):
            wave = upsample(wave)
            residuals = module.resblocks[index * blocks : (index + 1) * blocks]
            wave = sum(block(wave) for block in residuals) / blocks
        wave = module.conv_post(module.activation_post(wave))
        samples: Tensor = wave.clamp(min=-1.0, max=1.0).squeeze(1)
        return samples


def _block_reach(kernel: int, dilations: list[int]) -> int:
    """Receptive field of a residual block, in samples per side."""
    half = (kernel - 1) // 2
    return sum(half * dilation + half + 2 * _ACTIVATION for dilation in dilations)
