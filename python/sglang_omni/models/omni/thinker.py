"""A thinker's stage: payloads to requests of its engine, and these to text and to what a talker reads."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Future
from typing import Any

from tokenizers import Tokenizer

from sglang_omni.engines import EngineRequest
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.model_runner.sequence import RotaryPositions
from sglang_omni.models.decoder.text_answer import new_text, text_chunks
from sglang_omni.models.decoder.thinker import Thinker
from sglang_omni.models.decoder.token_logprobs import constrained, with_logprobs
from sglang_omni.models.omni.checkpoint import MediaCheckpoint
from sglang_omni.models.omni.embedding_merge import EmbeddingMerge
from sglang_omni.models.omni.payloads import ThinkerInput
from sglang_omni.models.omni.request import thinker_sampling
from sglang_omni.preprocessing.request import answers_in_speech
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage


class MediaThinker(Thinker):
    """A ``Thinker`` from ``ThinkerInput``.

    Args:
        tokenizer: The checkpoint's.
        config: The engine's decoder.
        device: Where the thinker computes.
    """

    def __init__(
        self,
        checkpoint: MediaCheckpoint[Any, Any],
        tokenizer: Tokenizer,
        config: DecoderConfig,
        device: str = "cpu",
    ) -> None:
        super().__init__(tokenizer, config)
        self._checkpoint = checkpoint
        self._config = config
        self._media = EmbeddingMerge(checkpoint.tokens, device)

    @abstractmethod
    def _state(self, payload: StagePayload, data: ThinkerInput) -> ThinkerState | None:
        """The sequence's media, and the outputs that a talker wants; None if there is neither."""

    @abstractmethod
    def _for_talker(self, request: EngineRequest, new_token_ids: list[int]) -> object:
        """What the talker reads of a step of a spoken answer: its tokens, without reasoning and calls."""

    def build_request(self, payload: StagePayload) -> EngineRequest | Future[EngineRequest]:
        """
        Raises:
            RequestError: A sampling parameter is out of its range.
            ValueError: The encoders gave another number of rows than the prompt has placeholders.
        """
        data: ThinkerInput = payload.data
        reading = data.get("reading")
        instead = None if reading is None else reading["sampling"]
        sampling = thinker_sampling(payload.request, self._checkpoint, instead)
        positions = data["positions"]
        state = self._state(payload, data)
        # The payload is kept as long as the request, and must not keep what was copied out of the rows.
        data["visuals"], data["audios"] = [], []
        return constrained(
            self._grammars,
            sampling,
            lambda grammar: EngineRequest(
                payload.request_id,
                data["prompt_token_ids"],
                sampling,
                self._texts.of(payload, sampling.stop),
                state=state,
                positions=None if positions is None else RotaryPositions(positions, data["position_delta"]),
                key_token_ids=data["key_token_ids"],
                grammar=grammar,
            ),
        )

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """New text for the caller, new tokens for the talker."""
        news = new_text(request)
        messages = with_logprobs(text_chunks(payload, news), request, self.token_bytes)
        if answers_in_speech(payload.request):
            spoken = self._for_talker(request, new_token_ids)
            messages.append(OutgoingMessage(request.request_id, "stream", spoken, "talker"))
        return messages
