"""The thinker stage of Qwen3-Omni, whose talker reads the answer's tokens and hidden states of the media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_omni.engines import EngineRequest
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.models.multimodal.payloads import ThinkerInput
from sglang_omni.models.multimodal.thinker import MediaThinker
from sglang_omni.models.qwen3_omni.payloads import ThinkerText
from sglang_omni.models.text_answer import ReadText, text_of
from sglang_omni.preprocessing.request import answers_in_speech
from sglang_omni.proto import StagePayload


class Qwen3OmniThinker(MediaThinker):
    """A ``MediaThinker`` that streams ``ThinkerText``."""

    def _state(self, payload: StagePayload, data: ThinkerInput) -> ThinkerState | None:
        return self._media.state(data, wants_hidden=answers_in_speech(payload.request))

    def _for_talker(
        self, request: EngineRequest, news: Mapping[str, Any], new_token_ids: list[int]
    ) -> ThinkerText:
        is_first = len(new_token_ids) == len(request.output_token_ids)
        hidden = request.state.media_hidden if is_first and isinstance(request.state, ThinkerState) else None
        spoken = new_token_ids
        if isinstance(text_of(request), ReadText):
            spoken = self._spoken(request, news.get("text", ""))
        return ThinkerText(token_ids=spoken, media_hidden=hidden)

    def _spoken(self, request: EngineRequest, content: str) -> list[int]:
        """The tokens of an answer's content, for the talker, who must read neither reasoning nor calls.

        The talker takes an answer's last token for its end.
        """
        ids: list[int] = self._texts.tokenizer.encode(content, add_special_tokens=False).ids
        return ids if request.finish_reason is None else [*ids, *request.output_token_ids[-1:]]
