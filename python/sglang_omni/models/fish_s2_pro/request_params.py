"""The request parameters of Fish Audio S2-Pro."""

from __future__ import annotations

from sglang_omni.preprocessing.request_params import SAMPLING, RequestParams, TaskParams

# Speech has no codes after its end.
_SAMPLING = tuple(name for name in SAMPLING if name not in ("ignore_eos", "stop"))

REQUEST_PARAMS: RequestParams = {
    "speech": TaskParams(
        general=(*_SAMPLING, "voice", "ref_audio", "ref_text"), stages={"dual_ar": _SAMPLING}
    )
}
