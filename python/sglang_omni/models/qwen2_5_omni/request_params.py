"""The request parameters of Qwen2.5-Omni."""

from __future__ import annotations

from sglang_omni.models.multimodal.request_params import request_params_with
from sglang_omni.preprocessing.request_params import RequestParams

CODE2WAV = ("chunking", "seed")
REQUEST_PARAMS: RequestParams = request_params_with(CODE2WAV)
# Defaults of transformers' ``generate`` for this model.
TALKER_DEFAULTS: dict[str, float] = {
    "temperature": 0.9,
    "top_k": 40,
    "top_p": 0.8,
    "repetition_penalty": 1.05,
    "max_new_tokens": 4096,
}
