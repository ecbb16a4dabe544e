"""The talker stage: payloads and streamed text to requests of its engine, and these to frames of codes."""

from __future__ import annotations

from sglang_omni.engines import EngineRequest
from sglang_omni.models.omni.payloads import TalkerInput
from sglang_omni.models.omni.request import requested_voice, talker_sampling
from sglang_omni.models.omni.talker import Talker
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.talker_prompt import talker_prompt
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState
from sglang_omni.models.qwen3_omni.payloads import ThinkerText
from sglang_omni.models.qwen3_omni.positions import PositionRules
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage


class Qwen3Talker(Talker[Qwen3TalkerState]):
    """A ``Talker`` that streams frames as (frames, groups) on the host."""

    # The last code makes no frame.
    warm_up_codes = 4

    def __init__(self, checkpoint: Qwen3OmniCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._talker = checkpoint.require_talker()
        rules = PositionRules.from_config(checkpoint.thinker_config, checkpoint.tokens)
        self._rules = rules.for_talker(checkpoint.config["talker_config"])

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
            requested_voice(payload.request, self._checkpoint),
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

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """The frames whose codes have come to the host."""
        codes = self._state(request).take_arrived()
        return [] if codes is None else [OutgoingMessage(request.request_id, "stream", codes)]

    def _feed(self, state: Qwen3TalkerState, item: ThinkerText) -> None:
        if item["media_hidden"] is not None:
            state.media_hidden = item["media_hidden"]
        state.feed(item["token_ids"])

    def _num_frames(self, request: EngineRequest) -> int:
        return len(self._state(request).frames)

    def _warm_up(self) -> tuple[list[int], ThinkerText]:
        tokens = self._checkpoint.tokens
        ids = [tokens.im_start, tokens.user, tokens.user, tokens.im_start, tokens.assistant, tokens.user]
        return ids, ThinkerText(token_ids=[tokens.user, tokens.user], media_hidden=None)
