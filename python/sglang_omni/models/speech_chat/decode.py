"""The last stage of every answer in text."""

from __future__ import annotations

from sglang_omni.models.text_answer import text_result
from sglang_omni.preprocessing.request import task_of
from sglang_omni.proto import StagePayload


def decode(payload: StagePayload) -> StagePayload:
    """The caller's result out of the thinker's, or of a transcription, which is a result as it stands."""
    data = payload.data
    if task_of(payload.request) in ("transcription", "translation"):
        result = {"modality": "text", **data}
    else:
        result = {**text_result(data), "input_transcript": data["input_transcript"]}
    return StagePayload(payload.request_id, payload.request, result)
