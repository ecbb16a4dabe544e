"""The request parameters of a language model."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import SAMPLING, RequestParams, TaskParams

_STAGES = {"thinker": SAMPLING}

REQUEST_PARAMS: RequestParams = {
    "chat": TaskParams((*SAMPLING, "chat_template_kwargs"), _STAGES),
    "completion": TaskParams((*SAMPLING, "parse_special_tokens"), _STAGES),
}
