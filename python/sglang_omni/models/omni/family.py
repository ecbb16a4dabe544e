"""What families of models that see, hear and may speak differ in, as their common stages need it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_omni.models.omni.checkpoint import MediaCheckpoint

if TYPE_CHECKING:
    import torch

    from sglang_omni.config.plan.memory import MemoryDemand
    from sglang_omni.engines.options import DecoderSpec, EngineOptions
    from sglang_omni.model_runner.feedback import FeedbackStrategy
    from sglang_omni.model_runner.request_sampling import RequestSampling
    from sglang_omni.models.omni.audio_tower import AudioEncoder
    from sglang_omni.models.omni.preprocess import MediaPreprocessor
    from sglang_omni.models.omni.talker import Talker
    from sglang_omni.models.omni.thinker import MediaThinker
    from sglang_omni.models.omni.vision_tower import VisualEncoder
    from sglang_omni.preprocessing.request_params import RequestParams
    from sglang_omni.proto import OmniRequest


@dataclass(frozen=True)
class OmniFamily:
    """A family's parts.

    Attributes:
        checkpoint: Reads the family's checkpoints.
        preprocessor: Makes prompts and the encoders' inputs.
        request_params: The parameters of each task.
        check_codec: Refuses a request to be spoken for parameters of the codec's stage, by the request and
            the talker's sampling.
        stage_demand: What a stage takes of a GPU, as the family's ``memory.stage_demand``.
        thinker_decoder: The thinker's decoder; ``for_speech`` if a talker reads its hidden states.
        thinker: The callbacks of the thinker's stage.
        talker_strategy: What the talker reads at each step, by dtype and device.
        talker_decoder: The talker's decoder.
        talker: The callbacks of the talker's stage.
        vision_encoder, audio_encoder: The encoders.
        patch_size, audio_window: Of a vision and an audio config that do not set ``patch_size`` or
            ``n_window``, in pixels and mel frames.
        pads_audio: True if a clip's encoder input depends on its request's longest clip.
        record_graphs: Captures a talker strategy's CUDA graphs, before the first request; None if it has
            none.
    """

    checkpoint: type[MediaCheckpoint[Any, Any]]
    preprocessor: type[MediaPreprocessor[Any]]
    request_params: RequestParams
    check_codec: Callable[[OmniRequest, RequestSampling], None]
    stage_demand: Callable[..., MemoryDemand | None]
    thinker_decoder: Callable[..., DecoderSpec]
    thinker: type[MediaThinker]
    talker_strategy: Callable[[Any, torch.dtype, str], FeedbackStrategy]
    talker_decoder: Callable[[Any, FeedbackStrategy], DecoderSpec]
    talker: Callable[[Any], Talker[Any]]
    vision_encoder: type[VisualEncoder]
    audio_encoder: type[AudioEncoder]
    patch_size: int
    audio_window: int
    pads_audio: bool
    record_graphs: Callable[[Any, EngineOptions], None] | None = None

    def check_params(
        self, request: OmniRequest, checkpoint: MediaCheckpoint[Any, Any], *, has_talker: bool
    ) -> None:
        """Checks a request's parameters for all stages, before anything is computed.

        Args:
            has_talker: True if the pipeline speaks.

        Raises:
            RequestError: The pipeline cannot speak and the request wants speech, or a parameter is not
                acceptable.
        """
        # Imported late: they bring torch.
        from sglang_omni.models.omni import request as params
        from sglang_omni.preprocessing.request_params import check_request

        check_request(request, self.request_params)
        params.thinker_sampling(request, checkpoint)
        if params.is_spoken(request, has_talker=has_talker and checkpoint.talker is not None):
            params.requested_voice(request, checkpoint)
            self.check_codec(request, params.talker_sampling(request, checkpoint))
