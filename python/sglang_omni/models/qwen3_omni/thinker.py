"""The thinker stage of Qwen3-Omni, whose talker reads the answer's tokens and hidden states of the media."""

from __future__ import annotations

from sglang_omni.answers.content_tokens import ContentTokens
from sglang_omni.engines import EngineRequest
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.models.decoder.text_answer import content_tokens
from sglang_omni.models.omni.payloads import ThinkerInput
from sglang_omni.models.omni.thinker import MediaThinker
from sglang_omni.models.qwen3_omni.payloads import ThinkerText
from sglang_omni.preprocessing.request import answers_in_speech
from sglang_omni.proto import StagePayload


class Qwen3OmniThinker(MediaThinker):
    """A ``MediaThinker`` that streams ``ThinkerText``."""

    def _state(self, payload: StagePayload, data: ThinkerInput) -> ThinkerState | None:
        return self._media.state(data, wants_hidden=answers_in_speech(payload.request))

    def _for_talker(self, request: EngineRequest, new_token_ids: list[int]) -> ThinkerText:
        is_first = len(new_token_ids) == len(request.output_token_ids)
        hidden = request.state.media_hidden if is_first and isinstance(request.state, ThinkerState) else None
        content = content_tokens(request)
        spoken = new_token_ids if content is None else self._spoken(request, content)
        return ThinkerText(token_ids=spoken, media_hidden=hidden)

    def _spoken(self, request: EngineRequest, content: ContentTokens) -> list[int]:
        """The next tokens that are content, and at last the answer's last one: the talker takes it for the
        answer's end, and does not speak it."""
        ids = request.output_token_ids
        first, flags = content.take(len(ids))
        after = first + len(flags)
        spoken = [token for token, is_content in zip(ids[first:after], flags, strict=True) if is_content]
        if request.finish_reason is not None and not (after == len(ids) and flags and flags[-1]):
            spoken.append(ids[-1])
        return spoken
