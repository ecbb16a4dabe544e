"""The request parameters of Qwen3-Omni."""

from __future__ import annotations

from sglang_omni.models.multimodal.request_params import request_params_with, stage_params_with
from sglang_omni.preprocessing.request_params import RequestParams

STAGE_PARAMS = stage_params_with(("chunking", "chunk_size", "left_context_size"))
REQUEST_PARAMS: RequestParams = request_params_with(STAGE_PARAMS)
