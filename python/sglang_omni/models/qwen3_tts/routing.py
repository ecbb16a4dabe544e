"""Where a text to speak goes in Qwen3-TTS's pipeline."""

from __future__ import annotations

from sglang_omni.models.frames.speech import keeps_voice
from sglang_omni.proto import StagePayload


def after_preprocess(request_id: str, output: StagePayload) -> list[str]:
    """A recording is encoded first, and the codec gets its codes from there."""
    return ["reference"] if "recording" in output.data else ["speak", "code2wav"]


def after_reference(request_id: str, output: StagePayload) -> list[str]:
    """A voice to keep is complete."""
    return ["voice"] if keeps_voice(output.request) else ["speak", "code2wav"]


def to_code2wav(payload: StagePayload) -> StagePayload:
    """The request, and the codes of a recording that the speech goes on after; others come as a stream."""
    data = payload.data
    # A voice alone is not gone on after.
    heard = {"reference_codes": data["reference_codes"]} if "reference" in data else {}
    return StagePayload(payload.request_id, payload.request, heard)
