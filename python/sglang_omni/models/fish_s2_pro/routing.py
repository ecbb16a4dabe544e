"""Routing of requests between the stages of Fish Audio S2-Pro, by functions that the config names."""

from __future__ import annotations

from sglang_omni.proto import StagePayload


def after_preprocess(request_id: str, output: StagePayload) -> list[str]:
    """A recording is encoded first; the codec gets the request early, and waits for its codes."""
    return ["voice_encoder" if "recording" in output.data else "dual_ar", "codec"]


def to_codec(payload: StagePayload) -> StagePayload:
    """The request alone; codes come as a stream."""
    return StagePayload(payload.request_id, payload.request, {})
