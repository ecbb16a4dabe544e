"""transformers' modules of Qwen3-Omni that are used here, and what its encoders compute beforehand.

transformers does not document their insides, and its minor versions change them. Only this file imports them.
They were tried with transformers 5.16 to 5.24: before, the video processor has no ``cap_pixels_per_frame``.
"""

from __future__ import annotations

from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
    Qwen3OmniMoeVisionEncoderConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeCode2WavDecoderResidualUnit,
    Qwen3OmniMoeConvNeXtBlock,
    Qwen3OmniMoeVisionEncoder,
)
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

from sglang_omni.models.omni.reference import PACKED_ATTENTION

__all__ = [
    "PACKED_ATTENTION",
    "Qwen3OmniMoeCausalConvNet",
    "Qwen3OmniMoeCausalTransConvNet",
    "Qwen3OmniMoeCode2Wav",
    "Qwen3OmniMoeCode2WavConfig",
    "Qwen3OmniMoeCode2WavDecoderResidualUnit",
    "Qwen3OmniMoeConvNeXtBlock",
    "Qwen3OmniMoeVisionEncoder",
    "Qwen3OmniMoeVisionEncoderConfig",
    "get_vision_interpolation_indices_and_weights",
    "get_vision_position_ids",
]
