"""The last stage of every answer in text."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_omni.models.text_answer import text_result
from sglang_omni.proto import StagePayload


def merge_sources(payloads: Mapping[str, StagePayload]) -> StagePayload:
    """The thinker's payload, with the talker's beside it where there is speech; ``merge_fn``."""
    thinker = payloads["thinker"]
    speech = {"talker": payloads["talker"].data} if "talker" in payloads else {}
    return StagePayload(thinker.request_id, thinker.request, {**thinker.data, **speech})


def decode(payload: StagePayload) -> StagePayload:
    """The caller's result out of the thinker's and the talker's."""
    # Beside the text, what became of the speech, where there is any.
    result = {**text_result(payload.data), "talker": payload.data.get("talker")}
    return StagePayload(payload.request_id, payload.request, result)
