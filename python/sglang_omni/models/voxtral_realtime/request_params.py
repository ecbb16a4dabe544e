"""The request parameters of Voxtral Realtime, which finds the language out by itself and reads no prompt."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import RequestParams, TaskParams

_HEARD = ("temperature", "seed", "max_new_tokens")

REQUEST_PARAMS: RequestParams = {"transcription": TaskParams(general=_HEARD, stages={"transcribe": _HEARD})}
