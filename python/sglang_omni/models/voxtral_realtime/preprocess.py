"""The preprocess stage of Voxtral Realtime, which reads nothing beside the sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.models.recordings.preprocess import RecordingInput, RecordingPreprocessor
from sglang_omni.models.voxtral_realtime.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.deadline import Check
from sglang_omni.preprocessing.request import named_inputs
from sglang_omni.proto import OmniRequest, RequestError

# Of sound that comes, in Hz.
_RATES = range(8_000, 192_001)


class VoxtralRealtimeInput(RecordingInput):
    """preprocess -> transcribe.

    Attributes:
        sample_rate: Of the sound that comes while the request runs; None if ``audio`` is all of it.
    """

    sample_rate: int | None


class VoxtralRealtimePreprocessor(RecordingPreprocessor):
    """A ``RecordingPreprocessor`` that makes ``VoxtralRealtimeInput``. Its parameters are no languages
    and prompts.
    """

    request_params = REQUEST_PARAMS

    def _language(self, name: str | None) -> str | None:
        return None

    def _prompt(self, prompt: str, language: str | None, check: Check) -> Mapping[str, list[int]]:
        # The transcribe stage's alone, since it depends on the delay.
        return {"before": []}

    def _sound(self, request: OmniRequest, check: Check) -> Mapping[str, Any]:
        rate = named_inputs(request, ("audio", "sample_rate")).get("sample_rate")
        if rate is None:
            return {**super()._sound(request, check), "sample_rate": None}
        if rate not in _RATES:
            raise RequestError(
                f"the sample rate must be from {_RATES[0]} to {_RATES[-1]} Hz, got {rate}",
                param="sample_rate",
                code="invalid_value",
            )
        return {"audio": b"", "sample_rate": int(rate)}
