"""The requests that the coordinator follows, by either of their ids, and what is kept of earlier ones."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict

from sglang_omni.pipeline.coordinator.request import Chunks, OwnedId, TrackedRequest
from sglang_omni.pipeline.coordinator.wire_ids import WireIds
from sglang_omni.proto import RequestState, StageTime

# Requests whose timings are remembered, the latest.
_REMEMBERED_TIMINGS = 1024


class RequestRegistry:
    """The running requests.

    Attributes:
        running: By the owner and the owner's id.
        by_wire_id: By wire id.
    """

    def __init__(self) -> None:
        self.running: dict[OwnedId, TrackedRequest] = {}
        self.by_wire_id: dict[str, TrackedRequest] = {}
        self._wire_ids = WireIds()
        self._timings: OrderedDict[OwnedId, dict[str, StageTime]] = OrderedDict()
        self._ended: Counter[str] = Counter()

    def add(
        self, request_id: str, owner: str | None, terminals: frozenset[str], chunks: Chunks | None
    ) -> TrackedRequest:
        """Follows a new request, under a new wire id."""
        tracked = TrackedRequest(
            request_id=request_id,
            wire_id=self._wire_ids.new(request_id),
            terminals=terminals,
            outcome=asyncio.get_running_loop().create_future(),
            chunks=chunks,
            owner=owner,
        )
        self.running[tracked.name] = tracked
        self.by_wire_id[tracked.wire_id] = tracked
        self._timings[tracked.name] = tracked.timings
        if len(self._timings) > _REMEMBERED_TIMINGS:
            self._timings.popitem(last=False)
        return tracked

    def remove(self, tracked: TrackedRequest) -> None:
        """Counts a request that has ended, in its final state."""
        self._ended[tracked.state.value] += 1
        del self.running[tracked.name]
        del self.by_wire_id[tracked.wire_id]

    def states(self) -> Counter[str]:
        """How many running requests are in each state."""
        return Counter(tracked.state.value for tracked in self.running.values())

    def load(self) -> dict[str, int]:
        """Requests by state: at the moment for pending and running, since the start for the final states."""
        states = self.states()
        return {state.value: states[state.value] or self._ended[state.value] for state in RequestState}

    def timings(self, name: OwnedId) -> dict[str, StageTime]:
        """Seconds in each stage that the request has left; empty if it is not known."""
        return self._timings.get(name, {})
