"""The thinker stage of Qwen2.5-Omni, whose talker reads the answer's tokens and all hidden states."""

from __future__ import annotations

import torch

from sglang_omni.answers.content_tokens import ContentTokens
from sglang_omni.engines import EngineRequest
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.models.decoder.text_answer import content_tokens
from sglang_omni.models.omni.payloads import ThinkerInput
from sglang_omni.models.omni.thinker import MediaThinker
from sglang_omni.models.qwen2_5_omni.payloads import Qwen25ThinkerOutput
from sglang_omni.preprocessing.request import answers_in_speech
from sglang_omni.proto import StagePayload


class Qwen25Thinker(MediaThinker):
    """A ``MediaThinker`` that streams ``Qwen25ThinkerOutput``."""

    def _state(self, payload: StagePayload, data: ThinkerInput) -> ThinkerState | None:
        state = self._media.state(data, wants_hidden=False)
        if answers_in_speech(payload.request):
            if state is None:
                nowhere = torch.zeros(0, dtype=torch.int64)
                state = ThinkerState(nowhere, torch.zeros(0, self._config.hidden_size), nowhere)
            state.wants_rows = True
        return state

    def _for_talker(self, request: EngineRequest, new_token_ids: list[int]) -> Qwen25ThinkerOutput:
        state = request.state
        assert isinstance(state, ThinkerState)
        content = content_tokens(request)
        if content is None:
            return Qwen25ThinkerOutput(token_ids=new_token_ids, rows=self._joined(state.take_rows()))
        return self._content(request, state, content)

    def _content(
        self, request: EngineRequest, state: ThinkerState, content: ContentTokens
    ) -> Qwen25ThinkerOutput:
        """The next tokens that are content with their own rows, which come a step later than they do. The
        answer's last token has none, and is not spoken."""
        prompt = len(request.prompt_token_ids)
        # Of the sequence's tokens, the first whose row was not taken.
        start = state.num_rows - sum(map(len, state.rows))
        first, flags = content.take(state.num_rows - prompt)
        stop = prompt + first + len(flags)
        rows = self._joined(state.take_rows())
        if stop - start < len(rows):
            state.rows.append(rows[stop - start :])
        known = rows[: stop - start]
        if not all(flags):
            is_kept = [True] * max(0, prompt - start) + flags
            known = known[torch.tensor(is_kept)]
        ids = request.output_token_ids[first:]
        spoken = [token for token, is_content in zip(ids, flags, strict=False) if is_content]
        return Qwen25ThinkerOutput(token_ids=spoken, rows=known)

    def _joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        if not parts:
            return torch.zeros(0, self._config.hidden_size)
        return parts[0] if len(parts) == 1 else torch.cat(parts)
