"""Routing of requests between the stages of Fish Audio S2-Pro, by functions that the config names."""

from __future__ import annotations

from sglang_omni.models.frames.speech import keeps_voice
from sglang_omni.proto import OmniRequest, StagePayload


def after_preprocess(request_id: str, output: StagePayload) -> list[str]:
    """A recording is encoded first; the codec gets the request early, and waits for its codes."""
    if keeps_voice(output.request):
        return ["voice_encoder"]
    return ["voice_encoder" if "recording" in output.data else "dual_ar", "codec"]


def after_reference(request_id: str, output: StagePayload) -> list[str]:
    """A voice to keep is complete."""
    return ["voice" if keeps_voice(output.request) else "dual_ar"]


def terminal_stages(request: OmniRequest) -> list[str]:
    """The stages whose results make up the answer."""
    return ["voice"] if keeps_voice(request) else ["dual_ar", "codec"]


def to_codec(payload: StagePayload) -> StagePayload:
    """The request alone; codes come as a stream."""
    return StagePayload(payload.request_id, payload.request, {})
