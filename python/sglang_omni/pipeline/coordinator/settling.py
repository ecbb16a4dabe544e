"""Answered requests that a stage still holds, for example in a branch whose result is not needed.

A stage that answers within one interval of its reports has reported nothing of the request yet, and its
counts are as if it had never come: such a request waits for the report of that visit, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from sglang_omni.pipeline.coordinator.in_flight import InFlightCounts
from sglang_omni.pipeline.coordinator.request import TrackedRequest
from sglang_omni.proto import ProgressMessage

logger = logging.getLogger(__name__)

# Seconds after which a request that is answered is aborted in the stages that still hold it. Reports come
# within a twentieth of a second; the rest is for work that its stage would finish anyway.
_SETTLE_S = 1.0


class SettlingRequests:
    """Keeps answered requests until no stage holds them and all is reported, or aborts them after a while.

    Args:
        counts: The coordinator's; a request is forgotten there when it leaves here.
        abort: Aborts the request with this wire id in every stage.
    """

    def __init__(self, counts: InFlightCounts, abort: Callable[[str], None]) -> None:
        self._counts = counts
        self._abort = abort
        # By wire id, with its deadline; the earliest first.
        self._requests: OrderedDict[str, tuple[TrackedRequest, float]] = OrderedDict()
        self._reporting: set[str] = set()

    def add(self, tracked: TrackedRequest) -> None:
        loop = asyncio.get_running_loop()
        if not self._requests:
            loop.call_later(_SETTLE_S, self._sweep)
        self._requests[tracked.wire_id] = (tracked, loop.time() + _SETTLE_S)

    def get(self, wire_id: str) -> TrackedRequest | None:
        return entry[0] if (entry := self._requests.get(wire_id)) is not None else None

    def update(self, message: ProgressMessage) -> None:
        """Lets go of the requests that this report, which is counted already, has settled."""
        self._reporting.add(message.from_stage)
        if not self._requests:
            return
        for wire_id, _, _ in message.changes:
            self._let_go(wire_id)
        for wire_id, _, _, _ in message.spans:
            self._let_go(wire_id)

    def is_settled(self, tracked: TrackedRequest) -> bool:
        """True if no stage holds an answered request, and no report of it is missing."""
        return self._counts.is_settled(tracked.wire_id) and tracked.is_reported

    def _let_go(self, wire_id: str) -> None:
        if (tracked := self.get(wire_id)) is not None and self.is_settled(tracked):
            del self._requests[wire_id]
            self._counts.forget(wire_id)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._requests:
            wire_id, (_, deadline) = next(iter(self._requests.items()))
            if deadline > loop.time():
                loop.call_at(deadline, self._sweep)
                return
            del self._requests[wire_id]
            holders = self._counts.holders(wire_id)
            self._counts.forget(wire_id)
            # A stage that reports no progress at all seems to hold every request.
            if any(stage in self._reporting for stage in holders):
                logger.debug("Request %s is finished, but %s still hold it", wire_id, holders)
                self._abort(wire_id)
