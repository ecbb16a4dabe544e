"""What a stage's scheduler needs of an engine, whichever it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sglang_omni.engines.request import EngineRequest


class Engine(Protocol):
    """One model, one batch. Not thread-safe: a single thread adds, steps and aborts.

    Attributes:
        stepped: The ids of the requests that the last step computed something for.
    """

    stepped: Collection[str]

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something now; requests that wait for input do not count."""
        ...

    @property
    def running(self) -> list[EngineRequest]:
        """The requests that a failed step takes with it."""
        ...

    def add(self, request: EngineRequest) -> None:
        """Takes a request in.

        Raises:
            RequestError: The request cannot be served as it is.
            ValueError: A request of this id is in the engine already.
        """
        ...

    def abort(self, request_id: str) -> EngineRequest | None:
        """Ends a request between steps and frees what it holds; None where it is not here (any more)."""
        ...

    def step(self) -> list[EngineRequest]:
        """Computes one batch. Returns the requests that got a token, finished ones among them.

        A request that can never run is ended with a ``failure``, and returned too: if nothing runs and the
        first in line still finds no room, no later step could change that.
        """
        ...

    def flush_cache(self) -> None:
        """Forgets what no request uses. Called between steps."""
        ...

    def stats(self) -> dict[str, int]:
        """What ``/metrics`` shows of this engine; names that end in ``_total`` are counters, others gauges.

        SGLang's names, where it has one. Autoregressive engines: ``num_running_reqs``, ``max_running_reqs``
        (at once, at the most), ``num_queue_reqs``, ``kv_used_tokens`` (held by requests),
        ``kv_evictable_tokens`` (kept for later ones), ``max_total_num_tokens``, ``prompt_tokens_total``,
        ``cached_tokens_total``, ``generation_tokens_total``, ``num_retracted_requests_total``,
        ``num_steps_total``, ``max_batch_size`` (the largest so far). Encoders: ``num_running_reqs``,
        ``num_queue_reqs``, ``num_items_total``, ``num_steps_total``, ``max_batch_size``,
        ``cache_hits_total``, ``cache_misses_total``, ``cache_used_bytes``, ``cache_max_bytes``.

        Called by the engine's thread after every step: it must be cheap.
        """
        ...
