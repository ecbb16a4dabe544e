"""The requests that the coordinator follows, by either of their ids, and what is kept of earlier ones."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict

from sglang_omni.pipeline.coordinator.request import Chunks, OwnedId, TrackedRequest
from sglang_omni.pipeline.coordinator.request_trace import RequestTrace
from sglang_omni.pipeline.coordinator.wire_ids import WireIds
from sglang_omni.proto import RequestState

# Requests whose traces are remembered, the latest.
_REMEMBERED_TRACES = 1024


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
        self._traces: OrderedDict[OwnedId, RequestTrace] = OrderedDict()
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
        self._traces[tracked.name] = tracked.trace
        self._traces.move_to_end(tracked.name)
        if len(self._traces) > _REMEMBERED_TRACES:
            self._traces.popitem(last=False)
        return tracked

    def remove(self, tracked: TrackedRequest) -> None:
        """Counts a request that has ended, in its final state."""
        self._ended[tracked.state.value] += 1
        tracked.trace.ended, tracked.trace.state = time.time(), tracked.state
        del self.running[tracked.name]
        del self.by_wire_id[tracked.wire_id]

    def states(self) -> Counter[str]:
        """How many running requests are in each state."""
        return Counter(tracked.state.value for tracked in self.running.values())

    def load(self) -> dict[str, int]:
        """Requests by state: at the moment for pending and running, since the start for the final states."""
        states = self.states()
        return {state.value: states[state.value] or self._ended[state.value] for state in RequestState}

    def trace(self, name: OwnedId) -> RequestTrace | None:
        """Where the request was when; None if it is not known, or no longer."""
        return self._traces.get(name)
