"""The request parameters of Kokoro."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import RequestParams, TaskParams

REQUEST_PARAMS: RequestParams = {"speech": TaskParams(general=("voice", "language", "speed", "seed"))}
