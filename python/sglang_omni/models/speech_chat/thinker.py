"""The thinker stage of speech-chat: payloads to requests of its engine, and these to text."""

from __future__ import annotations

from sglang_omni.engines import EngineRequest
from sglang_omni.models.decoder.text_answer import new_text, text_chunks
from sglang_omni.models.decoder.token_logprobs import with_logprobs
from sglang_omni.models.text.thinker import TextThinker
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage


class SpeechChatThinker(TextThinker):
    """A thinker whose text is also spoken.

    Payloads are ``{"prompt_token_ids": [int], "input_transcript": str | None}``, perhaps with a ``reading``;
    results are those of ``written``, with ``input_transcript``.
    """

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """New text for the caller and for the voice."""
        messages = text_chunks(payload, new_text(request), speaker="speak")
        return with_logprobs(messages, request, self.token_bytes)

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        data = {**self.answer(request), "input_transcript": payload.data.get("input_transcript")}
        return StagePayload(payload.request_id, payload.request, data)
