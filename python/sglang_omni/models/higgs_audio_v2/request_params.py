"""The request parameters of Higgs Audio v2, and its voices."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import RequestParams, TaskParams

# The model chooses a voice by the text and the scene, unless a recording sets it.
VOICES = ("default",)
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "max_new_tokens")

REQUEST_PARAMS: RequestParams = {
    "speech": TaskParams(
        general=(*_SAMPLING, "voice", "instructions", "ref_audio", "ref_text"), stages={"speak": _SAMPLING}
    )
}
