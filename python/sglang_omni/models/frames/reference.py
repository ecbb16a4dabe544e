"""The reference stage: the recording of a voice to its codes, those of several requests at once.

Of some models, it is a vector of the voice too.
"""

from __future__ import annotations

import torch

from sglang_omni.engines.cache import OutputCache
from sglang_omni.engines.encoder import Encoder, EncoderEngine, EncoderRequest
from sglang_omni.models.codecs.mimi import VoiceRecording
from sglang_omni.models.frames.speech import SpeechParts
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.omni_scheduler import OmniScheduler


def reference_scheduler(
    encoder: Encoder, *, cache_bytes: int, max_batch_cost: int, warm_up_samples: int = 4800
) -> OmniScheduler[EncoderRequest]:
    """
    Args:
        encoder: Of ``VoiceRecording``s to codes, and of some models to ``SpeechParts["speaker"]`` too.
        cache_bytes: Size of the cache of codes for repeated recordings; 0 for none.
        max_batch_cost: Limit of the costs of a batch's recordings.
        warm_up_samples: Length of the warm-up's recording.
    """

    def build(payload: StagePayload) -> EncoderRequest:
        data: SpeechParts = payload.data
        return EncoderRequest(payload.request_id, [data["recording"]])

    def result(payload: StagePayload, request: EncoderRequest) -> StagePayload:
        data: SpeechParts = payload.data
        ((codes, *voice),) = request.outputs
        parts = SpeechParts(**{**data, "reference_codes": codes})
        if voice:
            (parts["speaker"],) = voice
        del parts["recording"]
        return StagePayload(payload.request_id, payload.request, parts)

    def tiny() -> list[EncoderRequest]:
        return [
            EncoderRequest("warm-up", [VoiceRecording(key=b"warm-up", samples=torch.zeros(warm_up_samples))])
        ]

    engine = EncoderEngine(encoder, OutputCache(cache_bytes), max_batch_cost=max_batch_cost)
    return OmniScheduler(engine, build, result, warm_up_requests=tiny)
