"""What Qwen2.5-Omni is to the stages that omni families share."""

from __future__ import annotations

from sglang_omni.models.omni.family import OmniFamily
from sglang_omni.models.qwen2_5_omni.components.audio import WindowedAudioEncoder
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.decoders import talker_decoder, thinker_decoder
from sglang_omni.models.qwen2_5_omni.components.talker_strategy import Qwen25TalkerStrategy
from sglang_omni.models.qwen2_5_omni.components.vision import WindowedVisionEncoder
from sglang_omni.models.qwen2_5_omni.memory import stage_demand
from sglang_omni.models.qwen2_5_omni.preprocess import Qwen25Preprocessor
from sglang_omni.models.qwen2_5_omni.request import check_codec
from sglang_omni.models.qwen2_5_omni.request_params import REQUEST_PARAMS
from sglang_omni.models.qwen2_5_omni.talker import Qwen25Talker
from sglang_omni.models.qwen2_5_omni.thinker import Qwen25Thinker

FAMILY = OmniFamily(
    checkpoint=Qwen25OmniCheckpoint,
    preprocessor=Qwen25Preprocessor,
    request_params=REQUEST_PARAMS,
    check_codec=check_codec,
    stage_demand=stage_demand,
    thinker_decoder=thinker_decoder,
    thinker=Qwen25Thinker,
    talker_strategy=Qwen25TalkerStrategy.from_checkpoint,
    talker_decoder=talker_decoder,
    talker=Qwen25Talker,
    vision_encoder=WindowedVisionEncoder,
    audio_encoder=WindowedAudioEncoder,
    patch_size=14,
    audio_window=100,
    pads_audio=False,
)
