"""What families of models that see, hear and may speak differ in, as their common stages need it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_omni.models.multimodal.checkpoint import MediaCheckpoint

if TYPE_CHECKING:
    import torch

    from sglang_omni.config.plan.memory import MemoryDemand
    from sglang_omni.engines.encoder import Encoder
    from sglang_omni.engines.options import DecoderSpec, EngineOptions
    from sglang_omni.model_runner.feedback import FeedbackStrategy
    from sglang_omni.models.multimodal.preprocess import MediaPreprocessor
    from sglang_omni.models.multimodal.talker import Talker
    from sglang_omni.models.multimodal.thinker import MediaThinker


@dataclass(frozen=True)
class OmniFamily:
    """A family's parts.

    Attributes:
        checkpoint: Reads the family's checkpoints.
        preprocessor: Makes prompts and the encoders' inputs.
        check_params: Refuses a request, as the family's ``request.check_params``.
        stage_demand: What a stage takes of a GPU, as the family's ``memory.stage_demand``.
        thinker_decoder: The thinker's decoder; ``for_speech`` if a talker reads its hidden states.
        thinker: The callbacks of the thinker's stage.
        talker_strategy: What the talker reads at each step, by dtype and device.
        talker_decoder: The talker's decoder.
        talker: The callbacks of the talker's stage.
        vision_encoder: By the checkpoint, a dtype and a device.
        audio_encoder: By the checkpoint, a dtype and a device.
        patch_size, audio_window: Of a vision and an audio config that do not set ``patch_size`` or
            ``n_window``, in pixels and mel frames.
        pads_audio: True if a clip's encoder input depends on its request's longest clip.
        record_graphs: Captures a talker strategy's CUDA graphs, before the first request; None if it has
            none.
    """

    checkpoint: type[MediaCheckpoint[Any, Any]]
    preprocessor: type[MediaPreprocessor[Any]]
    check_params: Callable[..., None]
    stage_demand: Callable[..., MemoryDemand | None]
    thinker_decoder: Callable[..., DecoderSpec]
    thinker: type[MediaThinker]
    talker_strategy: Callable[[Any, torch.dtype, str], FeedbackStrategy]
    talker_decoder: Callable[[Any, FeedbackStrategy], DecoderSpec]
    talker: Callable[[Any], Talker[Any]]
    vision_encoder: Callable[[Any, torch.dtype, str], Encoder]
    audio_encoder: Callable[[Any, torch.dtype, str], Encoder]
    patch_size: int
    audio_window: int
    pads_audio: bool
    record_graphs: Callable[[Any, EngineOptions], None] | None = None
