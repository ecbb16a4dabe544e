"""The thinker stage of Qwen2.5-Omni, whose talker reads the answer's tokens and all hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sglang_omni.engines import EngineRequest
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.models.multimodal.payloads import ThinkerInput
from sglang_omni.models.multimodal.thinker import MediaThinker
from sglang_omni.models.qwen2_5_omni.payloads import ThinkerRows
from sglang_omni.preprocessing.request import answers_in_speech
from sglang_omni.proto import StagePayload


class RowsThinker(MediaThinker):
    """A ``MediaThinker`` that streams ``ThinkerRows``."""

    def _state(self, payload: StagePayload, data: ThinkerInput) -> ThinkerState | None:
        state = self._media.state(data, wants_hidden=False)
        if answers_in_speech(payload.request):
            if state is None:
                nowhere = torch.zeros(0, dtype=torch.int64)
                state = ThinkerState(nowhere, torch.zeros(0, self._config.hidden_size), nowhere)
            state.wants_rows = True
        return state

    def _for_talker(
        self, request: EngineRequest, news: Mapping[str, Any], new_token_ids: list[int]
    ) -> ThinkerRows:
        assert isinstance(request.state, ThinkerState)
        parts = request.state.take_rows()
        if not parts:
            parts = [torch.zeros(0, self._config.hidden_size)]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        return ThinkerRows(token_ids=new_token_ids, rows=rows)
