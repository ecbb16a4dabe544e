"""The decode stage, which makes the caller's result of every answer in text."""

from __future__ import annotations

from sglang_omni.models.decoder.text_answer import text_result
from sglang_omni.preprocessing.request import task_of
from sglang_omni.proto import StagePayload
from sglang_omni.proto.tasks import TextResult, Transcript


def decode(payload: StagePayload) -> StagePayload:
    """The caller's result from the thinker's, or from a transcription, which is one already."""
    data = payload.data
    if task_of(payload.request) in ("transcription", "translation"):
        transcript: Transcript = data
        result: Transcript | TextResult = {"modality": "text", **transcript}
    else:
        result = {**text_result(data), "input_transcript": data["input_transcript"]}
    return StagePayload(payload.request_id, payload.request, result)
