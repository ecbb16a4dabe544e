"""The talker stage: payloads and streamed text to requests of its engine, and these to codes."""

from __future__ import annotations

from typing import cast

import torch

from sglang_omni.engines import EngineRequest
from sglang_omni.engines.request import FinishReason
from sglang_omni.models.multimodal.payloads import TalkerInput, no_media
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.talker_state import Qwen25TalkerState
from sglang_omni.models.qwen2_5_omni.components.voices import FILE, load_voices
from sglang_omni.models.qwen2_5_omni.payloads import Qwen25ThinkerOutput
from sglang_omni.models.qwen2_5_omni.positions import Qwen25PositionRules
from sglang_omni.models.qwen2_5_omni.request import talker_sampling, voice_of
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage


class Qwen25Talker:
    """The callbacks of the stage's ``OmniScheduler``.

    Payloads are ``TalkerInput``, streamed items ``Qwen25ThinkerOutput``. Streams (n,) int64 codes to the next
    stage, on the CPU. Results are ``{"finish_reason", "frames"}``; a frame is a code.
    """

    def __init__(self, checkpoint: Qwen25OmniCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._speech = checkpoint.require_talker()
        self._voices = load_voices(checkpoint.path / FILE)
        rules = Qwen25PositionRules.from_config(checkpoint.thinker_config, checkpoint.tokens)
        self._rules = rules.for_talker(checkpoint.config["talker_config"])

    def build_request(self, payload: StagePayload) -> EngineRequest:
        """
        Raises:
            RequestError: The speaker is unknown, or a ``talker_*`` parameter is out of its range.
        """
        data: TalkerInput = payload.data
        speech = self._speech
        sampling = talker_sampling(payload.request, self._checkpoint)
        if sampling.ignore_eos:
            raise RequestError(
                "speech has no codes after its end", param="ignore_eos", code="unsupported_value"
            )
        bos = self._voices[voice_of(payload.request, self._checkpoint)].bos
        ids = data["prompt_token_ids"]
        state = Qwen25TalkerState(ids, self._checkpoint.tokens.media, bos)
        request = EngineRequest(
            payload.request_id,
            [*[speech.mask] * len(ids), speech.pad, speech.bos],
            sampling,
            state=state,
            # The answer's first token is no placeholder either.
            positions=self._rules.rope_positions([*ids, bos, bos], data["media"]),
            cacheable=False,
            # As in transformers, of what stands for the prompt.
            penalizes_prompt=True,
        )
        state.codes = request.output_token_ids
        return request

    def warm_up_requests(self) -> list[EngineRequest]:
        """A prompt of three tokens and an answer of three codes: a prefill, and decodes."""
        asked = OmniRequest(None, {"talker_max_new_tokens": 3})
        payload = StagePayload("warm-up", asked, TalkerInput(prompt_token_ids=[0, 0, 0], media=no_media()))
        request = self.build_request(payload)
        state = _state_of(request)
        width = int(self._checkpoint.thinker_config["text_config"]["hidden_size"])
        state.feed([0, 0], torch.zeros(4, width))
        state.end_text()
        return [request]

    def take_text(self, request: EngineRequest, item: StreamItem) -> None:
        """The stage's ``stream_chunk_handler``: adds new tokens of the answer."""
        text: Qwen25ThinkerOutput = item.data
        _state_of(request).feed(text["token_ids"], text["rows"])

    def end_text(self, request: EngineRequest, from_stage: str | None) -> FinishReason | None:
        """The stage's ``stream_done_handler``: the answer is complete."""
        state = _state_of(request)
        state.end_text()
        return "stop" if state.is_silent else None

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """The new codes."""
        codes = self._codes(new_token_ids)
        return [OutgoingMessage(request.request_id, "stream", torch.tensor(codes))] if codes else []

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        data = {
            "finish_reason": request.finish_reason,
            "frames": len(self._codes(request.output_token_ids)),
        }
        return StagePayload(payload.request_id, payload.request, data)

    def _codes(self, token_ids: list[int]) -> list[int]:
        return [token for token in token_ids if token not in self._speech.ends]


def _state_of(request: EngineRequest) -> Qwen25TalkerState:
    return cast(Qwen25TalkerState, request.state)
