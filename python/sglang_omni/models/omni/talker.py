"""A talker's stage: payloads and streamed text to requests of its engine, and these to codes of speech."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar, cast

from sglang_omni.engines import EngineRequest
from sglang_omni.engines.request import FinishReason
from sglang_omni.models.omni.payloads import TalkerInput, no_media
from sglang_omni.models.omni.talker_state import TalkerState
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage

State = TypeVar("State", bound=TalkerState)


class Talker(ABC, Generic[State]):
    """The callbacks of the stage's ``OmniScheduler``: from ``TalkerInput`` and the thinker's stream to
    ``{"finish_reason", "frames"}``.

    Attributes:
        warm_up_codes: Codes of the warm-up's answer.
    """

    warm_up_codes: ClassVar[int]

    @abstractmethod
    def build_request(self, payload: StagePayload) -> EngineRequest:
        """
        Raises:
            RequestError: The speaker is unknown, or a ``talker_*`` parameter is out of its range.
        """

    @abstractmethod
    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """The new codes, as int64, for the next stage."""

    @abstractmethod
    def _feed(self, state: State, item: Any) -> None:
        """Adds what the thinker streamed."""

    @abstractmethod
    def _num_frames(self, request: EngineRequest) -> int:
        """Frames of the speech so far."""

    @abstractmethod
    def _warm_up(self) -> tuple[list[int], object]:
        """The warm-up's prompt, and what the thinker streams of two tokens."""

    def warm_up_requests(self) -> list[EngineRequest]:
        """A short prompt and a short answer: a prefill, and decodes."""
        ids, item = self._warm_up()
        asked = OmniRequest(None, {"talker_max_new_tokens": self.warm_up_codes})
        payload = StagePayload("warm-up", asked, TalkerInput(prompt_token_ids=ids, media=no_media()))
        request = self.build_request(payload)
        self._feed(self._state(request), item)
        self._state(request).end_text()
        return [request]

    def take_text(self, request: EngineRequest, item: StreamItem) -> None:
        """The stage's ``stream_chunk_handler``: adds new tokens of the answer."""
        self._feed(self._state(request), item.data)

    def end_text(self, request: EngineRequest, from_stage: str | None) -> FinishReason | None:
        """The stage's ``stream_done_handler``: the answer is complete."""
        state = self._state(request)
        state.end_text()
        return "stop" if state.is_silent else None

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        data = {"finish_reason": request.finish_reason, "frames": self._num_frames(request)}
        return StagePayload(payload.request_id, payload.request, data)

    def _state(self, request: EngineRequest) -> State:
        return cast(State, request.state)
