"""A request inside an engine."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import SamplingRow, TokenHistory
from sglang_omni.model_runner.sequence import RotaryPositions, SequenceState

FinishReason = Literal["stop", "length", "abort"]


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class TextSink(Protocol):
    """Turns output tokens into text as they come; see ``scheduling.detokenizer``."""

    def feed(self, token_ids: list[int]) -> bool:
        """Takes tokens; True once a stop string is complete."""
        ...

    def finish(self) -> None:
        """No more tokens will come."""
        ...


@dataclass(eq=False, slots=True)
class EngineRequest:
    """One sequence: its prompt, how to go on from it, and how far it is.

    Attributes:
        detokenizer: Where output tokens go as text; a stop string it finds ends the request.
        state: What the model's runner needs of the sequence beyond its tokens.
        positions: Rotary positions on three axes, for models that have them.
        key_token_ids: What the prefix cache compares instead of the prompt's tokens: media placeholders are
            replaced by ids outside the vocabulary that stand for the media's content.
        cacheable: Whether equal tokens mean equal keys and values, so that they can be shared. Where they do
            not, the prompt's tokens are placeholders, and penalties leave them out.
        output_token_ids: What was generated, with the end token where one was.
        failure: Why the engine ended the request without its answer; its finish reason is ``"abort"`` then.
        num_computed: Tokens of prompt and output whose keys and values are in the cache.
        cached_tokens: Prompt tokens that were found in the cache when the request first ran.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: RequestSampling = field(default_factory=RequestSampling)
    detokenizer: TextSink | None = None
    state: SequenceState | None = None
    positions: RotaryPositions | None = None
    key_token_ids: list[int] | None = None
    cacheable: bool = True

    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    failure: Exception | None = None
    cached_tokens: int = 0
    max_new_tokens: int = 0
    num_computed: int = 0
    num_preempted: int = 0
    pages: list[int] = field(default_factory=list)
    # The prefix cache's name for the last page it knows of this request, and how many it knows.
    prefix_node: int = 0
    num_published: int = 0
    history: TokenHistory | None = None
    generator: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.generator = random.Random(self.sampling.seed)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens of prompt and output, by position."""
        return _slice(self.prompt_token_ids, self.output_token_ids, start, stop)

    def key_tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """What the prefix cache compares in their place."""
        return tuple(_slice(self.key_token_ids or self.prompt_token_ids, self.output_token_ids, start, stop))

    def is_ready(self, num_tokens: int) -> bool:
        """Whether the inputs of the first ``num_tokens`` tokens are there."""
        return self.state is None or self.state.is_ready(num_tokens)

    def sampling_row(self, vocab_size: int) -> SamplingRow:
        """What choosing the next token needs. Draws a random number: ask once for each token."""
        params = self.sampling
        if params.has_penalties and self.history is None:
            prompt = self.prompt_token_ids if self.cacheable else ()
            self.history = TokenHistory(vocab_size, prompt, self.output_token_ids)
        uniform = self.generator.random() if params.temperature > 0.0 else 0.0
        return SamplingRow(params, uniform, self.history)


def _slice(prompt: list[int], output: list[int], start: int, stop: int) -> list[int]:
    length = len(prompt)
    if start >= length:
        return output[start - length : stop - length]
    if stop <= length:
        return prompt[start:stop]
    return prompt[start:] + output[: stop - length]
