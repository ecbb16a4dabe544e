"""The request parameters of CSM, and its voices."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import RequestParams, TaskParams

# Speakers are numbers. What each sounds like is decided by a recording, or else by chance.
SPEAKERS = tuple(map(str, range(10)))
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "max_new_tokens")

REQUEST_PARAMS: RequestParams = {
    "speech": TaskParams(general=(*_SAMPLING, "voice", "ref_audio", "ref_text"), stages={"speak": _SAMPLING})
}
