"""transformers' modules that several families use here, and how its encoders attend.

transformers does not document their insides, and its minor versions change them: only the files of this
name, one a room, import them. Tried with transformers 5.16 to 5.24: before, the audio encoder takes no padded
pieces.
"""

from __future__ import annotations

from transformers import AttentionInterface
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeAudioEncoderConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeAudioEncoder

from sglang_omni.models.omni.packed_attention import packed_attention

# The encoders' ``attn_implementation``. With "flash" in the name, transformers would look for a package.
PACKED_ATTENTION = "sglang_omni_packed"
AttentionInterface.register(PACKED_ATTENTION, packed_attention)

__all__ = ["PACKED_ATTENTION", "Qwen3OmniMoeAudioEncoder", "Qwen3OmniMoeAudioEncoderConfig"]
