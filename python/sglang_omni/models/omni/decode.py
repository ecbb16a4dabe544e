"""The decode stage, which makes the caller's result of every answer in text."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_omni.models.decoder.text_answer import text_result
from sglang_omni.proto import StagePayload


def merge_sources(payloads: Mapping[str, StagePayload]) -> StagePayload:
    """The stage's ``merge_fn``: the thinker's payload, with the talker's data if there is speech."""
    thinker = payloads["thinker"]
    speech = {"talker": payloads["talker"].data} if "talker" in payloads else {}
    return StagePayload(thinker.request_id, thinker.request, {**thinker.data, **speech})


def decode(payload: StagePayload) -> StagePayload:
    """The caller's result from the thinker's, with the talker's finish reason and number of frames."""
    result = {**text_result(payload.data), "talker": payload.data.get("talker")}
    return StagePayload(payload.request_id, payload.request, result)
