"""The interface of an engine to the stage's scheduler, the same for every kind of engine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from sglang_omni.engines.request import BaseRequest, EngineRequest
from sglang_omni.model_runner.config import DecoderConfig

RequestT = TypeVar("RequestT", bound=BaseRequest)


class Engine(Protocol[RequestT]):
    """One model, one batch. Not thread-safe: a single thread adds, steps and aborts.

    Attributes:
        stepped: The ids of the requests in the last step.
    """

    stepped: Collection[str]

    @property
    def has_work(self) -> bool:
        """True if a step would compute something now. Requests that wait for input do not count."""
        ...

    @property
    def running(self) -> list[RequestT]:
        """The requests that are lost if a step fails."""
        ...

    def add(self, request: RequestT) -> None:
        """Takes a request in.

        Raises:
            RequestError: The request can never be served.
            ValueError: The engine already has a request of this id.
        """
        ...

    def abort(self, request_id: str) -> RequestT | None:
        """Ends a request between steps and frees what it holds; None if the engine does not have it."""
        ...

    def step(self) -> list[RequestT]:
        """Computes one batch. Returns the requests that got a token, and those that ended.

        A request that can never run ends with a ``failure``: nothing runs, and the first in line still finds
        no room, so no later step could change that.
        """
        ...

    def flush_cache(self) -> None:
        """Empties the cache of all that no request uses. Called between steps."""
        ...

    def reset_counters(self) -> None:
        """Sets the counters of ``stats``, and ``max_batch_size``, to zero. Called if there is no request."""
        ...

    def stats(self) -> dict[str, int]:
        """The engine's part of ``/metrics``. Names that end in ``_total`` are counters, the others gauges.

        The names are SGLang's if it has one. Autoregressive engines: ``num_running_reqs``,
        ``max_running_reqs`` (the limit), ``num_queue_reqs``, ``kv_used_tokens`` (held by requests),
        ``kv_evictable_tokens`` (kept for later ones), ``max_total_num_tokens``, ``prompt_tokens_total``,
        ``cached_tokens_total``, ``generation_tokens_total``, ``num_retracted_requests_total``,
        ``num_steps_total``, ``max_batch_size`` (the largest so far). Encoders: ``num_running_reqs``,
        ``num_queue_reqs``, ``num_items_total``, ``num_steps_total``, ``max_batch_size``,
        ``cache_hits_total``, ``cache_misses_total``, ``cache_used_bytes``, ``cache_max_bytes``.

        Called by the engine's thread after every step: it must be cheap.
        """
        ...


class TokenEngine(Engine[EngineRequest], Protocol):
    """An autoregressive engine.

    Attributes:
        config: Its decoder's shape; of a model that SGLang alone knows, only the vocabulary, the context and
            the end tokens.
        longest_step: The most prompt tokens of one request that a step can compute.
    """

    @property
    def config(self) -> DecoderConfig: ...

    @property
    def longest_step(self) -> int: ...
