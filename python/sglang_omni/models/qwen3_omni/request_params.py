"""The request parameters of Qwen3-Omni."""

from __future__ import annotations

from sglang_omni.models.omni.request_params import request_params_with
from sglang_omni.preprocessing.request_params import RequestParams

CODE2WAV = ("chunking", "chunk_size", "left_context_size")
REQUEST_PARAMS: RequestParams = request_params_with(CODE2WAV)
