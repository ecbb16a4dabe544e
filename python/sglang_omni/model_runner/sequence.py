"""What a model runner is told of the sequences in a batch, beyond their tokens."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class SequenceState(Protocol):
    """One sequence's inputs that are no tokens, and its outputs that are none.

    The stage that makes a request makes its state; the model's runner reads it and writes into it; an
    engine only asks whether it is ready.
    """

    def is_ready(self, num_tokens: int) -> bool:
        """Whether the inputs of the sequence's first ``num_tokens`` tokens are there.

        A sequence whose next input still has to come is held out of the batch and keeps its place in the
        KV cache.
        """
        ...


class RotaryPositions(NamedTuple):
    """Positions on three axes (time, height, width) for multimodal rotary embeddings (Qwen2-VL's M-RoPE).

    Attributes:
        prompt: (3, T) int64, of the prompt's tokens.
        delta: What is added to the place of a generated token to get its position on every axis.
    """

    prompt: Tensor
    delta: int


class SequenceSpan(NamedTuple):
    """Consecutive tokens of one sequence in a batch.

    Attributes:
        state: The request's own, None where it has none.
        start: The place in the sequence of the span's first token.
        num_tokens: How many there are.
        first_row: The batch's row that holds the first of them.
        samples: Whether the span reaches the sequence's end, so that a token is chosen after it.
    """

    state: SequenceState | None
    start: int
    num_tokens: int
    first_row: int
    samples: bool
