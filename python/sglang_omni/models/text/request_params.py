"""The request parameters of a language model."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import CHAT, TEXT_SAMPLING, RequestParams, TaskParams

_STAGES = {"thinker": TEXT_SAMPLING}

REQUEST_PARAMS: RequestParams = {
    "chat": TaskParams((*TEXT_SAMPLING, *CHAT), _STAGES),
    "completion": TaskParams((*TEXT_SAMPLING, "parse_special_tokens"), _STAGES),
}
