"""The talker stage: payloads and streamed text to requests of its engine, and these to codes."""

from __future__ import annotations

import torch

from sglang_omni.engines import EngineRequest
from sglang_omni.models.omni.payloads import TalkerInput
from sglang_omni.models.omni.request import requested_voice, talker_sampling
from sglang_omni.models.omni.talker import Talker
from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.talker_state import Qwen25TalkerState
from sglang_omni.models.qwen2_5_omni.components.voices import FILE, load_voices
from sglang_omni.models.qwen2_5_omni.payloads import Qwen25ThinkerOutput
from sglang_omni.models.qwen2_5_omni.positions import Qwen25PositionRules
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage


class Qwen25Talker(Talker[Qwen25TalkerState]):
    """A ``Talker`` whose frames are codes; it streams them as (n,), on the CPU."""

    warm_up_codes = 3

    def __init__(self, checkpoint: Qwen25OmniCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._speech = checkpoint.require_talker()
        self._voices = load_voices(checkpoint.path / FILE)
        rules = Qwen25PositionRules.from_config(checkpoint.thinker_config, checkpoint.tokens)
        self._rules = rules.for_talker(checkpoint.config["talker_config"])

    def build_request(self, payload: StagePayload) -> EngineRequest:
        data: TalkerInput = payload.data
        speech = self._speech
        sampling = talker_sampling(payload.request, self._checkpoint)
        if sampling.ignore_eos:
            raise RequestError(
                "speech has no codes after its end", param="ignore_eos", code="unsupported_value"
            )
        bos = self._voices[requested_voice(payload.request, self._checkpoint)].bos
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

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        codes = self._codes(new_token_ids)
        return [OutgoingMessage(request.request_id, "stream", torch.tensor(codes))] if codes else []

    def _feed(self, state: Qwen25TalkerState, item: Qwen25ThinkerOutput) -> None:
        state.feed(item["token_ids"], item["rows"])

    def _num_frames(self, request: EngineRequest) -> int:
        return len(self._codes(request.output_token_ids))

    def _warm_up(self) -> tuple[list[int], Qwen25ThinkerOutput]:
        width = int(self._checkpoint.thinker_config["text_config"]["hidden_size"])
        return [0, 0, 0], Qwen25ThinkerOutput(token_ids=[0, 0], rows=torch.zeros(4, width))

    def _codes(self, token_ids: list[int]) -> list[int]:
        return [token for token in token_ids if token not in self._speech.ends]
