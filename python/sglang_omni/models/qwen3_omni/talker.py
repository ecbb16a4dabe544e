"""The talker stage: payloads and streamed text to requests of its engine, and these to frames of codes."""

from __future__ import annotations

from typing import cast

import torch

from sglang_omni.engines import EngineRequest
from sglang_omni.engines.request import FinishReason
from sglang_omni.models.multimodal.payloads import TalkerInput, no_media
from sglang_omni.models.multimodal.positions import MediaRules
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.talker_prompt import talker_prompt
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState
from sglang_omni.models.qwen3_omni.payloads import ThinkerText
from sglang_omni.models.qwen3_omni.request import speaker_id, talker_sampling
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage


class Qwen3Talker:
    """The callbacks of the stage's ``OmniScheduler``.

    Payloads are ``TalkerInput``, streamed items ``ThinkerText``. Streams (frames, groups) int64 codes to the
    next stage, on the talker's device, from which the edge moves them if it must. Results are
    ``{"finish_reason", "frames"}``.
    """

    def __init__(self, checkpoint: Qwen3OmniCheckpoint, rules: MediaRules) -> None:
        self._checkpoint = checkpoint
        self._talker = checkpoint.require_talker()
        self._rules = rules

    def build_request(self, payload: StagePayload) -> EngineRequest:
        """
        Raises:
            RequestError: The speaker is unknown, a ``talker_*`` parameter is out of its range, or the prompt
                does not end with an assistant turn.
        """
        data: TalkerInput = payload.data
        talker = self._talker
        sampling = talker_sampling(payload.request, self._checkpoint)
        prompt = talker_prompt(
            data["prompt_token_ids"],
            self._checkpoint.tokens,
            talker.codec,
            speaker_id(payload.request, talker),
        )
        max_new_tokens = sampling.max_new_tokens
        assert max_new_tokens is not None, "the defaults set it"
        state = Qwen3TalkerState(prompt, max_new_tokens=max_new_tokens)
        request = EngineRequest(
            payload.request_id,
            prompt.token_ids,
            sampling,
            state=state,
            positions=self._rules.rope_positions(prompt.rope_ids, self._rules.for_speech(data["media"])),
            cacheable=False,
        )
        if sampling.temperature > 0.0:
            state.generator = request.generator
        return request

    def warm_up_requests(self) -> list[EngineRequest]:
        """A turn of one token and an answer of three frames: a prefill, decodes, and the code predictor."""
        tokens = self._checkpoint.tokens
        ids = [tokens.im_start, tokens.user, tokens.user, tokens.im_start, tokens.assistant, tokens.user]
        asked = OmniRequest(None, {"talker_max_new_tokens": 4})
        payload = StagePayload("warm-up", asked, TalkerInput(prompt_token_ids=ids, media=no_media()))
        request = self.build_request(payload)
        state = _state_of(request)
        state.feed([tokens.user, tokens.user])
        state.end_text()
        return [request]

    def take_text(self, request: EngineRequest, item: StreamItem) -> None:
        """The stage's ``stream_chunk_handler``: adds new tokens of the answer."""
        text: ThinkerText = item.data
        state = _state_of(request)
        if text["media_hidden"] is not None:
            state.media_hidden = text["media_hidden"]
        state.feed(text["token_ids"])

    def end_text(self, request: EngineRequest, from_stage: str | None) -> FinishReason | None:
        """The stage's ``stream_done_handler``: the answer is complete."""
        state = _state_of(request)
        state.end_text()
        return "stop" if state.is_silent else None

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """The frames of the new codes."""
        # Each token is a frame's first code, except the one that ends the speech.
        told = len(request.output_token_ids) - len(new_token_ids)
        frames = _state_of(request).frames[told:]
        if not frames:
            return []
        # A step makes one frame, which is lent or copied as it is.
        codes = frames[0].unsqueeze(0) if len(frames) == 1 else torch.stack(frames)
        return [OutgoingMessage(request.request_id, "stream", codes)]

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        data = {
            "finish_reason": request.finish_reason,
            "frames": len(_state_of(request).frames),
        }
        return StagePayload(payload.request_id, payload.request, data)


def _state_of(request: EngineRequest) -> Qwen3TalkerState:
    return cast(Qwen3TalkerState, request.state)
