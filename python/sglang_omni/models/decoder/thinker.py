"""A stage whose decoder writes text: payloads to requests of its engine, and these to text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from sglang_omni.engines import EngineRequest
from sglang_omni.engines.warm_up import text_requests
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.models.decoder.text_answer import AnswerTexts, written
from sglang_omni.models.decoder.token_logprobs import all_logprobs, grammars_for
from sglang_omni.preprocessing.token_bytes import TokenBytes
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.base import TokenEngine


class Thinker(ABC):
    """The callbacks of the stage's ``OmniScheduler``.

    Args:
        tokenizer: The checkpoint's.
        config: The engine's decoder.

    Attributes:
        token_bytes: What each token is.
    """

    def __init__(self, tokenizer: Tokenizer, config: DecoderConfig) -> None:
        self._texts = AnswerTexts(tokenizer)
        self.token_bytes = TokenBytes(tokenizer)
        self._grammars = grammars_for(self.token_bytes, config)

    @abstractmethod
    def build_request(self, payload: StagePayload) -> EngineRequest | Future[EngineRequest]:
        """
        Raises:
            RequestError: A sampling parameter is out of its range.
        """

    @abstractmethod
    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """New text for the caller, and what other stages read of it."""

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        return StagePayload(payload.request_id, payload.request, self.answer(request))

    def answer(self, request: EngineRequest) -> dict[str, Any]:
        """What ``written`` says of a request, with the log-probabilities that it wants."""
        return {**written(request), **all_logprobs(request, self.token_bytes)}

    def scheduler(self, built: TokenEngine) -> OmniScheduler:
        """The stage's scheduler, with a built engine."""
        return OmniScheduler(
            built,
            self.build_request,
            self.result,
            self.stream,
            warm_up_requests=partial(text_requests, built),
        )
