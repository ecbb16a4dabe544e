"""The request parameters of Qwen3-ASR."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import RequestParams, TaskParams

_HEARD = ("language", "prompt", "temperature", "seed", "max_new_tokens")

REQUEST_PARAMS: RequestParams = {"transcription": TaskParams(general=_HEARD, stages={"transcribe": _HEARD})}
