"""The dual_ar stage: payloads to requests of its engine, and these to frames of codes."""

from __future__ import annotations

from typing import Any, cast

import torch

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.fish_s2_pro.components.dual_ar_state import DualARState
from sglang_omni.models.fish_s2_pro.preprocess import DualARInput
from sglang_omni.preprocessing.request import stage_params
from sglang_omni.proto import RequestError, StagePayload

# Sampling parameters of a request that sets none.
_DEFAULTS = {"temperature": 0.8, "top_p": 0.8, "top_k": 30, "max_new_tokens": 1024}


class DualAR:
    """The callbacks of the stage's ``OmniScheduler``; its payloads are ``DualARInput``."""

    def __init__(self, checkpoint: FishS2Checkpoint) -> None:
        self._checkpoint = checkpoint

    def build_request(self, payload: StagePayload) -> EngineRequest:
        """
        Raises:
            RequestError: A sampling parameter is out of its range.
        """
        data: DualARInput = payload.data
        params = stage_params(payload.request, "dual_ar")
        given = {name: value for name, value in params.items() if value is not None}
        sampling = RequestSampling.from_params({**_DEFAULTS, **given})
        if sampling.ignore_eos:
            raise RequestError(
                "speech has no codes after its end", param="ignore_eos", code="unsupported_value"
            )
        voice = data["voice_codes"]
        frames = {} if voice is None else dict(enumerate(voice.unbind(), start=data["voice_start"]))
        state = DualARState(data["prompt_token_ids"], sampling, prompt_frames=frames)
        # Keys and values depend on all codes of a frame, but a token tells only the first.
        request = EngineRequest(
            payload.request_id, data["prompt_token_ids"], sampling, state=state, cacheable=False
        )
        state.generator = request.generator
        return request

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        frames = cast(DualARState, request.state).frames
        groups = self._checkpoint.fast.num_code_groups
        data: dict[str, Any] = {
            "codes": torch.stack(frames).cpu() if frames else torch.empty(0, groups, dtype=torch.long),
            "finish_reason": request.finish_reason,
            "prompt_tokens": len(request.prompt_token_ids),
        }
        return StagePayload(payload.request_id, payload.request, data)
