"""The last stage of every answer in text."""

from __future__ import annotations

from sglang_omni.preprocessing.request import task_of
from sglang_omni.proto import StagePayload


def decode(payload: StagePayload) -> StagePayload:
    """The caller's result out of the thinker's, or of a transcription, which is a result as it stands."""
    data = payload.data
    if task_of(payload.request) in ("transcription", "translation"):
        result = {"modality": "text", **data}
    else:
        prompt_tokens, completion_tokens = data["prompt_tokens"], len(data["token_ids"])
        result = {
            "modality": "text",
            "text": data["text"],
            "finish_reason": data["finish_reason"],
            "token_ids": data["token_ids"],
            "heard": data["heard"],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
                "prompt_tokens_details": {"cached_tokens": data["cached_tokens"]},
            },
        }
    return StagePayload(payload.request_id, payload.request, result)
