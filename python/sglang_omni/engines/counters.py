"""Counters of an autoregressive engine, for its metrics."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_omni.engines.request import EngineRequest


class StepCounters:
    """Steps and tokens so far, under the names of ``Engine.stats``."""

    def __init__(self) -> None:
        self._max_batch_size = 0
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_generated_tokens = 0

    def count(self, batch_size: int, advanced: Iterable[EngineRequest]) -> None:
        """Counts one step of ``batch_size`` requests, of which ``advanced`` got a token."""
        self._num_steps += 1
        self._max_batch_size = max(self._max_batch_size, batch_size)
        for request in advanced:
            self._num_generated_tokens += 1
            if len(request.output_token_ids) == 1:
                self._num_prompt_tokens += len(request.prompt_token_ids)
                self._num_cached_tokens += request.cached_tokens

    def stats(self) -> dict[str, int]:
        return {
            "prompt_tokens_total": self._num_prompt_tokens,
            "cached_tokens_total": self._num_cached_tokens,
            "generation_tokens_total": self._num_generated_tokens,
            "num_steps_total": self._num_steps,
            "max_batch_size": self._max_batch_size,
        }
