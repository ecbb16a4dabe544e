"""The dual_ar stage: payloads to requests of its engine, one a passage, and these to frames of codes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from sglang_omni.engines import EngineRequest, RequestSampling
from sglang_omni.engines.request import FinishReason
from sglang_omni.model_runner.sampling import RepetitionRule
from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.fish_s2_pro.components.dual_ar import FILTERS_FIRST
from sglang_omni.models.fish_s2_pro.components.prompts import FishPrompt, FishPrompts, SpokenPassage
from sglang_omni.models.fish_s2_pro.payloads import SpeechInput
from sglang_omni.models.frames.state import FrameState
from sglang_omni.preprocessing.request import stage_params
from sglang_omni.preprocessing.tokenizing import TextTokenizer
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.proto.tasks import TokenUsage
from sglang_omni.scheduling.messages import OutgoingMessage

# Sampling parameters of a request that sets none.
DEFAULTS = {"temperature": 0.8, "top_p": 0.8, "top_k": 30}
# The authors' own.
_REPETITION = RepetitionRule(window=10, temperature=1.0, top_p=0.9)
# Of earlier passages in a prompt, 71 s.
_EARLIER_FRAMES = 1536


@dataclass
class _Speech:
    """A text being spoken, passage by passage.

    Attributes:
        waiting: Passages that are not begun yet, the one being spoken first.
        frames_left: None without a limit.
    """

    waiting: list[list[int]]
    voice: SpokenPassage | None
    frames_left: int | None
    first: SpokenPassage | None = None
    last: SpokenPassage | None = None
    finish_reason: FinishReason = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def earlier(self, most_frames: int) -> list[SpokenPassage]:
        """The passages to go on from: the last, and without a voice the first, whose voice is to stay."""
        kept = [] if self.last is None else [self.last]
        if self.voice is None and self.first is not None and self.first is not self.last:
            kept.insert(0, self.first)
        while sum(len(passage.frames) for passage in kept) > most_frames:
            kept.pop()
        return kept


class _PassageState(FrameState):
    """The state of one passage, with the speech that it is part of."""

    def __init__(self, prompt: FishPrompt, sampling: RequestSampling, speech: _Speech) -> None:
        super().__init__(prompt.rows(), sampling)
        self.speech = speech


class DualAR:
    """The callbacks of the stage's ``OmniScheduler``; its payloads are ``SpeechInput``.

    Streams (frames, groups) int64 codes to the next stage, on the host. Results are
    ``{"finish_reason", "usage"}``.

    Args:
        max_passage_frames: Limit of a passage, if the request has none for the whole.
        pool_tokens: Size of the engine's KV cache; earlier passages take at most a quarter of it.
    """

    def __init__(
        self,
        checkpoint: FishS2Checkpoint,
        tokenizer: TextTokenizer,
        *,
        max_passage_frames: int,
        pool_tokens: int,
    ) -> None:
        self._checkpoint = checkpoint
        room = min(pool_tokens, checkpoint.slow.max_position_embeddings)
        self._earlier_frames = min(_EARLIER_FRAMES, room // 4)
        self._max_passage_frames = max_passage_frames
        self._prompts = FishPrompts(tokenizer)

    def build_request(self, payload: StagePayload) -> EngineRequest:
        """The request for the first passage.

        Raises:
            RequestError: A sampling parameter is out of its range.
        """
        data: SpeechInput = payload.data
        params = stage_params(payload.request, "dual_ar")
        given = {name: value for name, value in params.items() if value is not None}
        sampling = RequestSampling.from_params({**DEFAULTS, **given})
        sampling = replace(sampling, filters_first=FILTERS_FIRST)
        if sampling.ignore_eos:
            raise RequestError(
                "speech has no codes after its end", param="ignore_eos", code="unsupported_value"
            )
        codes, voice = data["voice_codes"], None
        if codes is not None:
            firsts = (codes[:, 0] + self._checkpoint.semantic_start).tolist()
            voice = SpokenPassage(data["voice_text"], firsts, codes.unbind())
        speech = _Speech(list(data["passages"]), voice, frames_left=sampling.max_new_tokens)
        return self._passage(payload, speech, sampling, None)

    def warm_up_requests(self) -> list[EngineRequest]:
        """A passage of a token and three frames: a prefill, decodes, and the fast decoder."""
        data = SpeechInput(passages=[[0]], voice_text=[], voice_samples=None, voice_codes=None)
        asked = OmniRequest(None, {"max_new_tokens": 3})
        return [self.build_request(StagePayload("warm-up", asked, data))]

    def follow_up(self, payload: StagePayload, request: EngineRequest) -> EngineRequest | None:
        """The request for the next passage: it continues the voice, and what is drawn at random."""
        state = cast(_PassageState, request.state)
        speech, tokens = state.speech, request.output_token_ids
        spoken = SpokenPassage(speech.waiting.pop(0), tokens[: len(state.frames)], state.frames)
        speech.completion_tokens += len(tokens)
        if request.finish_reason == "length":
            speech.finish_reason = "length"
        if speech.frames_left is not None:
            speech.frames_left -= len(tokens)
        # A passage without a sound says nothing about a voice.
        if spoken.frames:
            speech.first, speech.last = speech.first or spoken, spoken
        if not speech.waiting:
            return None
        if speech.frames_left is not None and speech.frames_left <= 0:
            speech.finish_reason = "length"
            return None
        return self._passage(payload, speech, request.sampling, request)

    def _passage(
        self, payload: StagePayload, speech: _Speech, sampling: RequestSampling, before: EngineRequest | None
    ) -> EngineRequest:
        text = speech.waiting[0]
        prompt = self._prompts.write(text, speech.voice, speech.earlier(self._earlier_frames))
        speech.prompt_tokens += len(prompt.token_ids) if before is None else len(text)
        limit = self._max_passage_frames if speech.frames_left is None else speech.frames_left
        sampling = replace(sampling, max_new_tokens=limit)
        state = _PassageState(prompt, sampling, speech)
        # Keys and values depend on all codes of a frame, but a token tells only the first.
        request = EngineRequest(
            payload.request_id,
            prompt.token_ids,
            sampling,
            state=state,
            cacheable=False,
            repetition=_REPETITION,
        )
        if before is not None:
            request.generator = before.generator
        state.generator = request.generator
        return request

    def stream(
        self, payload: StagePayload, request: EngineRequest, new_token_ids: list[int]
    ) -> list[OutgoingMessage]:
        """The frames whose codes have come to the host."""
        codes = cast(FrameState, request.state).take_arrived()
        return [] if codes is None else [OutgoingMessage(request.request_id, "stream", codes)]

    def result(self, payload: StagePayload, request: EngineRequest) -> StagePayload:
        speech = cast(_PassageState, request.state).speech
        usage = TokenUsage(prompt_tokens=speech.prompt_tokens, completion_tokens=speech.completion_tokens)
        data = {"finish_reason": speech.finish_reason, "usage": usage}
        return StagePayload(payload.request_id, payload.request, data)
