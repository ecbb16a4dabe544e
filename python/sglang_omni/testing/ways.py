"""The ways in which a pipeline is asked: none of them may change an answer."""

from __future__ import annotations

from enum import StrEnum


class Way(StrEnum):
    """
    Attributes:
        ALONE: One request after the other.
        TOGETHER: Several at once.
        PREFIX: Each once more, so that a cache has its prompt.
        ABORTED: Several at once, beside as many that are aborted while they run.
        STREAMED: One after the other, in pieces; these joined must be the whole.
        CHUNKED: Prompts are cut into steps of a few tokens, for stages that take a ``chunked_prefill_size``.
        RETRACTED: Several at once, from a KV pool that holds little more than one of them, for stages that
            take a ``max_total_tokens``: a request loses its place to others, and is computed again.
    """

    ALONE = "alone"
    TOGETHER = "together"
    PREFIX = "prefix cached"
    ABORTED = "beside aborted"
    STREAMED = "streamed"
    CHUNKED = "chunked prefill"
    RETRACTED = "retracted"


ALL_WAYS = tuple(Way)
