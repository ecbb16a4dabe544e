"""A model runner's data about the sequences in a batch, beyond their tokens."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class SequenceState(Protocol):
    """The inputs and outputs of one sequence that are not tokens.

    The stage that builds a request makes its state. The model's runner reads it and writes into it. Engines
    only ask whether it is ready.
    """

    def is_ready(self, num_tokens: int) -> bool:
        """True if the inputs of the sequence's first ``num_tokens`` tokens have arrived.

        A sequence whose next input is missing is held out of the batch and stays in the KV cache.
        """
        ...


class RotaryPositions(NamedTuple):
    """Positions on three axes (time, height, width) for multimodal rotary embeddings (Qwen2-VL's M-RoPE).

    Attributes:
        prompt: (3, T) int64, of the prompt's tokens.
        delta: Added to the index of a generated token to get its position on every axis.
    """

    prompt: Tensor
    delta: int


class SequenceSpan(NamedTuple):
    """Consecutive tokens of one sequence in a batch.

    Attributes:
        state: The sequence's state, if it has one.
        start: The index in the sequence of the span's first token.
        num_tokens: Tokens in the span.
        first_row: The row of the batch that holds the first of them.
        samples: True if the span reaches the sequence's end, so that a token is chosen after it.
    """

    state: SequenceState | None
    start: int
    num_tokens: int
    first_row: int
    samples: bool
