"""The request parameters of a language model."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import CHAT, SAMPLING, RequestParams, TaskParams

_STAGES = {"thinker": SAMPLING}

REQUEST_PARAMS: RequestParams = {
    "chat": TaskParams((*SAMPLING, *CHAT), _STAGES),
    "completion": TaskParams((*SAMPLING, "parse_special_tokens"), _STAGES),
}
