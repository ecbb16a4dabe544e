"""The speak stage of models of frames: texts to requests of its engine, and these to streams of frames.

A long text is spoken in parts, each a request of the engine. A part hears earlier ones, so that the voice
stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from torch import Tensor

from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import RepetitionRule
from sglang_omni.models.frames.delay import DelayPattern
from sglang_omni.models.frames.earlier import EarlierSpeech, SpokenTurn
from sglang_omni.models.frames.speech import SpeechParts
from sglang_omni.models.frames.state import FramePrompt, FrameState
from sglang_omni.preprocessing.request import stage_params
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.proto.tasks import TokenUsage
from sglang_omni.scheduling.messages import OutgoingMessage


@dataclass
class Speech:
    """A text being spoken, part by part.

    Attributes:
        opening: Token ids before all else in each prompt.
        tags: Codec tokens that say language and voice, of models that read these as such.
        waiting: Parts that are not begun yet, the one being spoken first.
        voice: The recording of a voice, if there is one.
        speaker: (hidden size,), the voice itself, of models that read it as a vector.
        residual: Sampling of a frame's codes after the first.
        tokens_left: That the rest of the text may take; None if each part has the limit for itself.
        kept: Earlier parts that the next may hear.
        cut: True if one of them reached its limit.
        usage: Prompt and completion tokens of all parts before.
    """

    opening: list[int]
    tags: list[int]
    waiting: list[list[int]]
    voice: list[SpokenTurn]
    speaker: Tensor | None
    residual: RequestSampling
    tokens_left: int | None
    kept: Sequence[SpokenTurn] = ()
    cut: bool = False
    usage: tuple[int, int] = (0, 0)


class Compose(Protocol):
    """Makes prompts."""

    def __call__(self, speech: Speech, turns: Sequence[SpokenTurn], text: list[int]) -> FramePrompt:
        """
        Args:
            turns: What was said before, in order: the recording of the voice, and earlier parts.
            text: Token ids of the part to speak.
        """
        ...


class _Part(FrameState):
    """
    Attributes:
        speech: That it is a part of.
    """

    def __init__(self, prompt: FramePrompt, speech: Speech, pattern: DelayPattern | None) -> None:
        super().__init__(prompt, speech.residual, pattern)
        self.speech = speech


class FrameSpeaker:
    """The callbacks of the stage's ``OmniScheduler``; its payloads are ``SpeechParts``.

    Streams (frames, groups) int64 codes on the host. Results are ``{"finish_reason", "usage"}``.

    Args:
        stage: The stage's name in ``stage_params``.
        compose: Makes prompts.
        defaults: Sampling parameters of requests that set none.
        residual_defaults: The same of a frame's codes after the first.
        earlier: What a part hears of those before it.
        pattern: The delay pattern of the decoder's rows, if they have one.
        filters_first: How codes are drawn, as of ``RequestSampling``.
        repetition: How codes that repeat recent ones are drawn again.
        min_frames: Before so many, ``end_token`` is not chosen.
        end_token: The token that ends a part.
        part_tokens: The most tokens of a part, if the request has no limit, which is then of the whole text.
            None: the request's limit, or the default, is of each part.
    """

    def __init__(
        self,
        stage: str,
        compose: Compose,
        defaults: Mapping[str, Any],
        residual_defaults: Mapping[str, Any],
        earlier: EarlierSpeech,
        *,
        pattern: DelayPattern | None = None,
        filters_first: bool = False,
        repetition: RepetitionRule | None = None,
        min_frames: int = 0,
        end_token: int | None = None,
        part_tokens: int | None = None,
    ) -> None:
        self._stage = stage
        self._compose = compose
        self._defaults = defaults
        self._residual_defaults = residual_defaults
        self._earlier = earlier
        self._pattern = pattern
        self._filters_first = filters_first
        self._repetition = repetition
        self._min_frames = min_frames
        self._late = () if end_token is None else (end_token,)
        self._part_tokens = part_tokens

    def build_request(self, payload: StagePayload) -> EngineRequest:
        """The request of the first part.

        Raises:
            RequestError: A sampling parameter is out of its range.
        """
        data: SpeechParts = payload.data
        given = {
            name: value
            for name, value in stage_params(payload.request, self._stage).items()
            if value is not None
        }
        sampling = RequestSampling.from_params({**self._defaults, **given})
        speech = Speech(
            opening=data["opening"],
            tags=data.get("tags", []),
            waiting=list(data["parts"]),
            voice=[SpokenTurn(data["reference"], data["reference_codes"], is_voice=True)]
            if "reference" in data
            else [],
            speaker=data.get("speaker"),
            residual=RequestSampling.from_params({**self._residual_defaults, **given}),
            tokens_left=None if self._part_tokens is None else sampling.max_new_tokens,
        )
        return self._part(payload, speech, replace(sampling, filters_first=self._filters_first))

    def follow_up(self, payload: StagePayload, request: EngineRequest) -> EngineRequest | None:
        """The request of the next part; None after the last."""
        state = cast(_Part, request.state)
        speech = state.speech
        speech.usage = self._usage(speech, request)
        speech.cut = speech.cut or request.finish_reason == "length"
        speech.kept = self._earlier.keep(speech.kept, SpokenTurn(speech.waiting.pop(0), state.spoken()))
        if not speech.waiting:
            return None
        if speech.tokens_left is not None:
            speech.tokens_left -= len(request.output_token_ids)
            if speech.tokens_left <= 0:
                speech.cut = True
                return None
        following = self._part(payload, speech, request.sampling)
        # The draws go on, so that parts with equal texts may differ.
        following.generator = cast(_Part, following.state).generator = request.generator
        return following

    def _part(self, payload: StagePayload, speech: Speech, sampling: RequestSampling) -> EngineRequest:
        text = speech.waiting[0]
        if self._part_tokens is not None:
            limit = self._part_tokens if speech.tokens_left is None else speech.tokens_left
            sampling = replace(sampling, max_new_tokens=limit)

        def prompt(earlier: Sequence[SpokenTurn]) -> FramePrompt:
            return self._compose(speech, [*speech.voice, *earlier], text)

        heard = self._earlier.heard(
            speech.kept,
            has_voice=bool(speech.voice),
            positions=lambda earlier: len(prompt(earlier).rows) + (sampling.max_new_tokens or 1),
        )
        composed = prompt(heard)
        state = _Part(composed, speech, self._pattern)
        # Keys and values depend on all codes of a frame, which no token holds.
        request = EngineRequest(
            payload.request_id,
            [0] * len(composed.rows),
            sampling,
            state=state,
            cacheable=False,
            ends=state.ends,
            repetition=self._repetition,
            min_new_tokens=self._min_frames,
            late_token_ids=self._late,
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
        speech = cast(_Part, request.state).speech
        prompt_tokens, frames = speech.usage
        usage = TokenUsage(prompt_tokens=prompt_tokens, completion_tokens=frames)
        data = {"finish_reason": "length" if speech.cut else request.finish_reason, "usage": usage}
        return StagePayload(payload.request_id, payload.request, data)

    def _usage(self, speech: Speech, request: EngineRequest) -> tuple[int, int]:
        """Prompt and completion tokens of all parts up to this one: all prompts, and frames."""
        prompts, frames = speech.usage
        return prompts + len(request.prompt_token_ids), frames + len(cast(_Part, request.state).frames)
