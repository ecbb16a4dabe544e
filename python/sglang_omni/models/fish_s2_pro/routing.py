"""Routing of requests between the stages of Fish Audio S2-Pro, by functions that the config names."""

from __future__ import annotations

from sglang_omni.models.fish_s2_pro.payloads import SpeechInput
from sglang_omni.proto import StagePayload


def after_preprocess(request_id: str, output: StagePayload) -> list[str]:
    """A recording is encoded first; the codec gets the request early, and waits for its codes."""
    data: SpeechInput = output.data
    return ["dual_ar" if data["voice_samples"] is None else "voice_encoder", "codec"]


def to_codec(payload: StagePayload) -> StagePayload:
    """The request alone; codes come as a stream."""
    return StagePayload(payload.request_id, payload.request, {})
