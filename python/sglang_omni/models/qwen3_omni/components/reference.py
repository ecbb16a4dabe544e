"""transformers' modules of Qwen3-Omni that are used here: encoders and codec.

transformers does not document their insides, and its minor versions change them. Only this file imports them.
They were tried with transformers 5.16 to 5.23: before, the audio encoder takes no padded pieces, or the video
processor has no ``cap_pixels_per_frame``.
"""

from __future__ import annotations

from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoderConfig,
    Qwen3OmniMoeCode2WavConfig,
    Qwen3OmniMoeVisionEncoderConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavDecoderResidualUnit,
    Qwen3OmniMoeConvNeXtBlock,
    Qwen3OmniMoeVisionEncoder,
)

__all__ = [
    "Qwen3OmniMoeAudioEncoder",
    "Qwen3OmniMoeAudioEncoderConfig",
    "Qwen3OmniMoeCausalConvNet",
    "Qwen3OmniMoeCausalTransConvNet",
    "Qwen3OmniMoeCode2Wav",
    "Qwen3OmniMoeCode2WavConfig",
    "Qwen3OmniMoeCode2WavDecoderResidualUnit",
    "Qwen3OmniMoeConvNeXtBlock",
    "Qwen3OmniMoeVisionEncoder",
    "Qwen3OmniMoeVisionEncoderConfig",
]
