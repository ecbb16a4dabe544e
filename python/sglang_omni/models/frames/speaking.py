"""The speak stage of models of frames: texts to requests of its engine, and these to streams of frames.

A long text is spoken in parts, each a request of the engine. A part hears the one before it, so that the
voice stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor

from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.frames.delay import DelayPattern
from sglang_omni.models.frames.speech import SpeechParts
from sglang_omni.models.frames.state import FrameState
from sglang_omni.preprocessing.request import stage_params
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.proto.tasks import TokenUsage
from sglang_omni.scheduling.messages import OutgoingMessage


class SpokenTurn(NamedTuple):
    """A text, as token ids, and the frames (n, G) in which it was said."""

    text: list[int]
    frames: Tensor


# Makes a prompt, a token or frame for each place, of what was said before and a text to speak.
Compose = Callable[[Sequence[SpokenTurn], list[int]], list[int | Tensor]]


class _Part(FrameState):
    """
    Attributes:
        index: Which of the parts it is.
        usage: Prompt and completion tokens of all parts before it.
        cut: True if one of them reached its limit of frames.
    """

    def __init__(
        self, prompt: Sequence[int | Tensor], sampling: RequestSampling, pattern: DelayPattern | None
    ) -> None:
        super().__init__(prompt, sampling, pattern)
        self.index = 0
        self.usage = (0, 0)
        self.cut = False


class FrameSpeaker:
    """The callbacks of the stage's ``OmniScheduler``; its payloads are ``SpeechParts``.

    Streams (frames, groups) int64 codes on the host. Results are ``{"finish_reason", "usage"}``.

    Args:
        stage: The stage's name in ``stage_params``.
        compose: Makes prompts.
        defaults: Sampling parameters of requests that set none.
        residual_defaults: The same of a frame's codes after the first.
        context_length: The most tokens and frames of a prompt and its speech.
        pattern: The delay pattern of the decoder's rows, if they have one.
    """

    def __init__(
        self,
        stage: str,
        compose: Compose,
        defaults: Mapping[str, Any],
        residual_defaults: Mapping[str, Any],
        context_length: int,
        pattern: DelayPattern | None = None,
    ) -> None:
        self._stage = stage
        self._compose = compose
        self._defaults = defaults
        self._residual_defaults = residual_defaults
        self._context_length = context_length
        self._pattern = pattern

    def build_request(self, payload: StagePayload) -> EngineRequest:
        """
        Raises:
            RequestError: A sampling parameter is out of its range.
        """
        return self._request(payload, 0, None)

    def follow_up(self, payload: StagePayload, request: EngineRequest) -> EngineRequest | None:
        """The request of the next part; None after the last."""
        data: SpeechParts = payload.data
        before = cast(_Part, request.state)
        if before.index + 1 == len(data["parts"]):
            return None
        following = self._request(payload, before.index + 1, before)
        following.sampling = request.sampling
        # The draws go on, so that parts with equal texts may differ.
        state = cast(_Part, following.state)
        following.generator = state.generator = request.generator
        state.usage, state.cut = _usage(request), before.cut or request.finish_reason == "length"
        return following

    def _request(self, payload: StagePayload, index: int, before: _Part | None) -> EngineRequest:
        data: SpeechParts = payload.data
        given = {
            name: value
            for name, value in stage_params(payload.request, self._stage).items()
            if value is not None
        }
        sampling = RequestSampling.from_params({**self._defaults, **given})
        turns = []
        if "reference_codes" in data:
            turns.append(SpokenTurn(data["reference"], data["reference_codes"]))
        text = data["parts"][index]
        opening = data["opening"]
        prompt = [*opening, *self._compose(turns, text)]
        if before is not None and len(frames := before.spoken()):
            said = SpokenTurn(data["parts"][index - 1], frames)
            longer = [*opening, *self._compose([*turns, said], text)]
            if len(longer) + (sampling.max_new_tokens or 1) <= self._context_length:
                prompt = longer
        residual = RequestSampling.from_params({**self._residual_defaults, **given})
        state = _Part(prompt, residual, self._pattern)
        state.index = index
        # Keys and values depend on all codes of a frame, which no token tells.
        request = EngineRequest(
            payload.request_id, [0] * len(prompt), sampling, state=state, cacheable=False, ends=state.ends
        )
        state.generator = request.generator
        return request

    def warm_up_requests(self) -> list[EngineRequest]:
        """A text of two tokens and three frames of speech."""
        asked = OmniRequest(None, {"max_new_tokens": 3})
        return [self.build_request(StagePayload("warm-up", asked, SpeechParts(parts=[[0, 0]], opening=[])))]

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """The frames that are complete and have come to the host."""
        frames = cast(_Part, request.state).take_arrived()
        return [] if frames is None else [OutgoingMessage(request.request_id, "stream", frames)]

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        prompt_tokens, frames = _usage(request)
        reason = "length" if cast(_Part, request.state).cut else request.finish_reason
        usage = TokenUsage(prompt_tokens=prompt_tokens, completion_tokens=frames)
        data = {"finish_reason": reason, "usage": usage}
        return StagePayload(payload.request_id, payload.request, data)


def _usage(request: EngineRequest) -> tuple[int, int]:
    """Tokens of all prompts so far, and frames."""
    state = cast(_Part, request.state)
    prompts, frames = state.usage
    return prompts + len(request.prompt_token_ids), frames + len(state.frames)
