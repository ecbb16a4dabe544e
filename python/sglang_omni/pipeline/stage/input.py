"""Input handlers: merge the payloads of a stage's sources into one for its scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sglang_omni.proto import StagePayload

MergeFn = Callable[[dict[str, StagePayload]], StagePayload]
ExpectedSourcesFn = Callable[[str, str, StagePayload], str | Iterable[str] | None]


class InputHandler(Protocol):
    def receive(self, request_id: str, from_stage: str, payload: StagePayload) -> StagePayload | None:
        """The payload to work on, or None while others are awaited. An exception fails the request."""

    def cancel(self, request_id: str) -> None:
        """Forgets the request's payloads."""


class DirectInput:
    """Takes every payload as work of its own."""

    def receive(self, request_id: str, from_stage: str, payload: StagePayload) -> StagePayload | None:
        return payload

    def cancel(self, request_id: str) -> None:
        pass


class AggregatedInput:
    """Merges a fan-in: waits for one payload of every expected source.

    Args:
        sources: All the stages that may send here.
        merge: Called with ``{source: payload}`` in the order of arrival.
        expected_sources_fn: Called as ``(request_id, from_stage, payload)`` for each payload until it
            names the sources of this request, a non-empty subset of ``sources``; None means "not known yet".
            Without it, all of ``sources`` are awaited.
    """

    def __init__(
        self,
        sources: Iterable[str],
        merge: MergeFn,
        expected_sources_fn: ExpectedSourcesFn | None = None,
    ) -> None:
        self.sources = frozenset(sources)
        if not self.sources:
            raise ValueError("AggregatedInput needs at least one source")
        self.merge = merge
        self.expected_sources_fn = expected_sources_fn
        self._received: dict[str, dict[str, StagePayload]] = {}
        self._expected: dict[str, frozenset[str]] = {}

    def receive(self, request_id: str, from_stage: str, payload: StagePayload) -> StagePayload | None:
        """Raises ValueError if the source, or an expected one, is outside ``sources``."""
        if from_stage not in self.sources:
            raise ValueError(
                f"received a payload from {from_stage!r}, which is outside static wait_for "
                f"{sorted(self.sources)}"
            )
        received = self._received.setdefault(request_id, {})
        received[from_stage] = payload
        expected = self._expected_of(request_id, from_stage, payload)
        if expected is None:
            return None
        if not received.keys() <= expected:
            raise ValueError(
                f"received payloads from {sorted(received.keys() - expected)}, but wait_for_fn expects only "
                f"{sorted(expected)} for request {request_id!r}"
            )
        if len(received) < len(expected):
            return None
        self.cancel(request_id)
        return self.merge(received)

    def cancel(self, request_id: str) -> None:
        self._received.pop(request_id, None)
        self._expected.pop(request_id, None)

    def _expected_of(self, request_id: str, from_stage: str, payload: StagePayload) -> frozenset[str] | None:
        if self.expected_sources_fn is None:
            return self.sources
        expected = self._expected.get(request_id)
        if expected is None:
            named = self.expected_sources_fn(request_id, from_stage, payload)
            if named is None:
                return None
            expected = self._expected[request_id] = self._checked(request_id, named)
        return expected

    def _checked(self, request_id: str, named: str | Iterable[str]) -> frozenset[str]:
        try:
            expected = frozenset([named] if isinstance(named, str) else named)
        except TypeError:
            expected = frozenset()
        if not expected:
            raise ValueError(
                f"wait_for_fn must return a non-empty subset of wait_for {sorted(self.sources)}, or None "
                f"while it cannot tell; got {named!r} for request {request_id!r}"
            )
        unknown = expected - self.sources
        if unknown:
            raise ValueError(
                f"wait_for_fn returned sources outside static wait_for for request {request_id!r}: "
                f"{sorted(map(str, unknown))}; allowed: {sorted(self.sources)}"
            )
        return expected
