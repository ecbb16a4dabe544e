"""Requests as engines know them: what all have, and one that is a sequence of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, Protocol

from sglang_omni.model_runner.demands import TokenDemands
from sglang_omni.model_runner.grammar import GrammarState
from sglang_omni.model_runner.penalties import TokenHistory
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import RepetitionRule, SamplingRow
from sglang_omni.model_runner.sequence import RotaryPositions, SequenceState
from sglang_omni.model_runner.token_scores import PromptScores

FinishReason = Literal["stop", "length", "abort"]


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class TextSink(Protocol):
    """Turns output tokens into text as they come, as ``IncrementalDetokenizer`` does."""

    def feed(self, token_ids: list[int]) -> bool:
        """Takes tokens. Returns True once a stop string is complete."""
        ...

    def finish(self) -> None:
        """Called after the last token."""
        ...


@dataclass(eq=False, slots=True)
class BaseRequest:
    """A request of any engine, as far as the stage's scheduler knows it.

    Attributes:
        output_token_ids: The tokens generated so far, an end token included; always empty in an encoder.
        finish_reason: None until the request is over.
        failure: Why the engine ended the request without a result; its finish reason is then ``"abort"``.
    """

    request_id: str
    output_token_ids: list[int] = field(default_factory=list, kw_only=True)
    finish_reason: FinishReason | None = field(default=None, kw_only=True)
    failure: Exception | None = field(default=None, kw_only=True)

    def set_default_seed(self, seed: int) -> None:
        """Fixes what the request draws at random, unless its caller has."""

    def finish(self, reason: FinishReason) -> None:
        """Ends the request with the output it has."""
        self.finish_reason = reason


@dataclass(eq=False, slots=True)
class EngineRequest(BaseRequest):
    """One sequence: its prompt, its sampling parameters, and how much of it is computed.

    Attributes:
        detokenizer: Receives the output tokens; a stop string that it finds ends the request.
        state: The sequence's inputs and outputs other than tokens, for the model's runner.
        positions: Rotary positions on three axes, for models that have them.
        key_token_ids: Compared by the prefix cache instead of the prompt's tokens. Ids outside the vocabulary
            stand for the content of media, where the prompt has placeholders.
        cacheable: True if equal tokens have equal keys and values, which can then be shared. If not, the
            prompt's tokens are placeholders, and penalties ignore them unless ``penalizes_prompt``.
        penalizes_prompt: True if penalties see the placeholders of a prompt that is not cacheable.
        adapter: The LoRA adapter that computes it, by name; None for the bare model.
        grammar: What the output must match, if ``sampling`` names a grammar; it takes each output token.
        repetition: If set, how tokens that repeat recent ones are drawn again.
        ends: Returns True, after a token, if the sequence ends with it; for models whose end no token marks.
        min_new_tokens: Until there are so many, none of ``late_token_ids`` is chosen.
        late_token_ids: Those that end a sequence.
        demands: What the sampler does for this request alone; None for most requests.
        prompt_scores: Set if the prompt's log-probabilities are wanted.
        cached_tokens: Prompt tokens found in the cache when the request first ran.
        num_computed: Tokens of prompt and output whose keys and values are in the cache.
        prefix_node: The prefix cache's id of the last published page of this request.
        num_published: How many of its pages are published.
    """

    prompt_token_ids: list[int]
    sampling: RequestSampling = field(default_factory=RequestSampling)
    detokenizer: TextSink | None = None
    state: SequenceState | None = None
    positions: RotaryPositions | None = None
    key_token_ids: list[int] | None = None
    cacheable: bool = True
    penalizes_prompt: bool = False
    adapter: str | None = None
    grammar: GrammarState | None = None
    repetition: RepetitionRule | None = None
    ends: Callable[[], bool] | None = None
    min_new_tokens: int = 0
    late_token_ids: tuple[int, ...] = ()

    status: RequestStatus = RequestStatus.WAITING
    cached_tokens: int = 0
    max_new_tokens: int = 0
    num_computed: int = 0
    num_preempted: int = 0
    pages: list[int] = field(default_factory=list)
    prefix_node: int = 0
    num_published: int = 0
    history: TokenHistory | None = None
    generator: random.Random = field(init=False)
    demands: TokenDemands | None = field(init=False)
    prompt_scores: PromptScores | None = field(init=False)

    def __post_init__(self) -> None:
        sampling = self.sampling
        self.generator = random.Random(sampling.seed)
        if sampling.grammar is not None and self.grammar is None:
            raise ValueError(f"request {self.request_id!r} names a grammar and was given none")
        self.demands = None
        if self.grammar is not None or sampling.logit_bias or sampling.logprobs is not None:
            self.demands = TokenDemands(sampling.logit_bias, self.grammar, sampling.logprobs)
        self.prompt_scores = None
        if sampling.prompt_logprobs is not None:
            self.prompt_scores = PromptScores(self.prompt_token_ids, sampling.prompt_logprobs)

    def set_default_seed(self, seed: int) -> None:
        if self.sampling.seed is None:
            self.sampling = replace(self.sampling, seed=seed)
            self.generator.seed(seed)

    def finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        if self.detokenizer is not None:
            self.detokenizer.finish()

    @property
    def reads_prefixes(self) -> bool:
        """True if keys and values that others computed do: scores need every token of the prompt computed."""
        return self.cacheable and (self.prompt_scores is None or self.prompt_scores.complete)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens of prompt and output, by position."""
        return _slice(self.prompt_token_ids, self.output_token_ids, start, stop)

    def key_tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """What the prefix cache compares instead of ``tokens(start, stop)``."""
        return tuple(_slice(self.key_token_ids or self.prompt_token_ids, self.output_token_ids, start, stop))

    def is_ready(self, num_tokens: int) -> bool:
        """True if the inputs of the first ``num_tokens`` tokens have arrived."""
        return self.state is None or self.state.is_ready(num_tokens)

    @property
    def choices_need_tokens(self) -> bool:
        """True if a token can be chosen only once the host has read the ones before it."""
        return (
            self.sampling.has_penalties
            or self.demands is not None
            or self.repetition is not None
            or self.ends is not None
            or len(self.output_token_ids) < self.min_new_tokens
            or (self.prompt_scores is not None and not self.prompt_scores.complete)
        )

    def sampling_row(self, vocab_size: int) -> SamplingRow:
        """What the sampler needs for the next token. Draws random numbers: call once for each token."""
        params = self.sampling
        if params.has_penalties and self.history is None:
            prompt = self.prompt_token_ids if self.cacheable or self.penalizes_prompt else ()
            self.history = TokenHistory(vocab_size, prompt, self.output_token_ids)
        demands = self.demands
        if demands is not None:
            # A step that failed after its choice is computed again.
            del demands.scores[len(self.output_token_ids) :]
        if len(self.output_token_ids) < self.min_new_tokens:
            demands = (demands or TokenDemands()).without(self.late_token_ids)
        if params.temperature == 0.0:
            return SamplingRow(params, 0.0, self.history, demands)
        row = SamplingRow(params, self.generator.random(), self.history, demands)
        if self.repetition is None:
            return row
        # The number is drawn whether or not it is used: those after it depend on no token.
        redraw = self.repetition.redraw(params, self.generator.random(), self.output_token_ids)
        return row._replace(redraw=redraw)


def _slice(prompt: list[int], output: list[int], start: int, stop: int) -> list[int]:
    length = len(prompt)
    if start >= length:
        return output[start - length : stop - length]
    if stop <= length:
        return prompt[start:stop]
    return prompt[start:] + output[: stop - length]
