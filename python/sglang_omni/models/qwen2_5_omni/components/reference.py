"""transformers' modules of Qwen2.5-Omni that are used here, and what its encoders compute beforehand.

transformers does not document their insides, and its minor versions change them. Only this file imports them.
"""

from __future__ import annotations

from transformers import AttentionInterface
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoderConfig,
    Qwen2_5OmniBigVGANConfig,
    Qwen2_5OmniDiTConfig,
    Qwen2_5OmniVisionEncoderConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoder,
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavDiTModel,
    Qwen2_5OmniVisionEncoder,
)
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from sglang_omni.models.omni.packed_attention import packed_attention

# The encoders' ``attn_implementation``. With "flash" in the name, transformers would look for a package.
PACKED_ATTENTION = "sglang_omni_packed"
AttentionInterface.register(PACKED_ATTENTION, packed_attention)

__all__ = [
    "PACKED_ATTENTION",
    "Qwen2_5OmniAudioEncoder",
    "Qwen2_5OmniAudioEncoderConfig",
    "Qwen2_5OmniBigVGANConfig",
    "Qwen2_5OmniDiTConfig",
    "Qwen2_5OmniToken2WavBigVGANModel",
    "Qwen2_5OmniToken2WavDiTModel",
    "Qwen2_5OmniVisionEncoder",
    "Qwen2_5OmniVisionEncoderConfig",
    "get_vision_position_ids",
    "get_vision_window_index",
]
