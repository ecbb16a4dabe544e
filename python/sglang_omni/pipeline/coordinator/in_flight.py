"""Who answers for a request: counted by the coordinator, reported by stages as differences.

Sums of differences do not depend on the order they arrive in, so fan-out, fan-in and streams need no
agreement between stages. A request is lost with a stage's process where its sum is positive for it:

- who hands a request on books +1 for the receiver, which may die with the message unread,
  and +1 for itself, since it may die with the message unsent;
- who receives it books -1 for the sender, and +1 for itself, should the sender's report be lost with it;
- who is done with a request books -2 for itself for each time it received it.

The coordinator books in the same way what it hands to the entry stage and what it receives as results.
"""

from __future__ import annotations

from collections.abc import Iterable


class ProgressCounters:
    """The coordinator's sums, per request and stage, for the requests it tracks."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def track(self, request_id: str) -> None:
        self._counts[request_id] = {}

    def forget(self, request_id: str) -> None:
        self._counts.pop(request_id, None)

    def add(self, request_id: str, stage: str, difference: int) -> int:
        """Returns the new sum; 0 for a request that is not tracked."""
        counts = self._counts.get(request_id)
        if counts is None:
            return 0
        total = counts.get(stage, 0) + difference
        if total:
            counts[stage] = total
        else:
            counts.pop(stage, None)
        return total

    def is_settled(self, request_id: str) -> bool:
        """Whether every hand-off that was booked has been answered for."""
        return not self._counts.get(request_id)

    def holders(self, request_id: str) -> list[str]:
        """The stages that answer for the request now."""
        return [stage for stage, total in self._counts.get(request_id, {}).items() if total > 0]

    def held_by(self, stages: Iterable[str]) -> list[str]:
        """The requests that at least one of these stages answers for."""
        names = set(stages)
        return [
            request_id
            for request_id, counts in self._counts.items()
            if any(total > 0 and stage in names for stage, total in counts.items())
        ]
