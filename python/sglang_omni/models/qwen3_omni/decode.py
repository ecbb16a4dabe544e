"""The last stage of every answer in text."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_omni.proto import StagePayload


def merge_sources(payloads: Mapping[str, StagePayload]) -> StagePayload:
    """The thinker's payload, with the talker's beside it where there is speech; ``merge_fn``."""
    thinker = payloads["thinker"]
    speech = {"talker": payloads["talker"].data} if "talker" in payloads else {}
    return StagePayload(thinker.request_id, thinker.request, {**thinker.data, **speech})


def decode(payload: StagePayload) -> StagePayload:
    """The caller's result out of the thinker's and the talker's."""
    data = payload.data
    prompt_tokens, completion_tokens = data["prompt_tokens"], len(data["token_ids"])
    result = {
        "modality": "text",
        "text": data["text"],
        "finish_reason": data["finish_reason"],
        "token_ids": data["token_ids"],
        # What became of the speech, where there is any.
        "talker": data.get("talker"),
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": data["cached_tokens"]},
        },
    }
    return StagePayload(payload.request_id, payload.request, result)
