"""What Qwen3-Omni is to the stages that omni families share."""

from __future__ import annotations

from sglang_omni.models.omni.audio_tower import AudioEncoder
from sglang_omni.models.omni.family import OmniFamily
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import talker_decoder, thinker_decoder
from sglang_omni.models.qwen3_omni.components.talker_strategy import Qwen3TalkerStrategy
from sglang_omni.models.qwen3_omni.components.vision import VisionEncoder
from sglang_omni.models.qwen3_omni.memory import stage_demand
from sglang_omni.models.qwen3_omni.preprocess import Qwen3OmniPreprocessor
from sglang_omni.models.qwen3_omni.request import check_codec
from sglang_omni.models.qwen3_omni.request_params import REQUEST_PARAMS
from sglang_omni.models.qwen3_omni.talker import Qwen3Talker
from sglang_omni.models.qwen3_omni.thinker import Qwen3OmniThinker

FAMILY = OmniFamily(
    checkpoint=Qwen3OmniCheckpoint,
    preprocessor=Qwen3OmniPreprocessor,
    request_params=REQUEST_PARAMS,
    check_codec=check_codec,
    stage_demand=stage_demand,
    thinker_decoder=thinker_decoder,
    thinker=Qwen3OmniThinker,
    talker_strategy=Qwen3TalkerStrategy.from_checkpoint,
    talker_decoder=talker_decoder,
    talker=Qwen3Talker,
    vision_encoder=VisionEncoder,
    audio_encoder=AudioEncoder,
    patch_size=16,
    audio_window=50,
    pads_audio=True,
    record_graphs=lambda strategy, options: strategy.record_graphs(
        options.max_running_requests, cuda_graph=options.cuda_graph
    ),
)
