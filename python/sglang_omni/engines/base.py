"""What a stage's scheduler needs of an engine, whichever it is."""

from __future__ import annotations

from typing import Protocol

from sglang_omni.engines.request import EngineRequest


class Engine(Protocol):
    """One model, one batch. Not thread-safe: a single thread adds, steps and aborts."""

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
        """Computes one batch. Returns the requests that got a token, finished ones among them."""
        ...

    def flush_cache(self) -> None:
        """Forgets what no request uses. Called between steps."""
        ...

    def stats(self) -> dict[str, int]:
        """Counters and gauges for ``/metrics``, under SGLang's names where it has one."""
        ...
