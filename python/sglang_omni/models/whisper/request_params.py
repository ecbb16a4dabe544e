"""The request parameters of Whisper."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import RequestParams, TaskParams

_HEARD = ("language", "prompt", "temperature", "seed", "word_timestamps")
_TASK = TaskParams(general=_HEARD, stages={"transcribe": _HEARD})

REQUEST_PARAMS: RequestParams = {"transcription": _TASK, "translation": _TASK}
