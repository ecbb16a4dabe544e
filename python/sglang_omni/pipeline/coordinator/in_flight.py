"""Distributed reference counts (termination detection): which instances hold a request at the moment.

If a process dies, exactly the requests that its instances hold are failed. Stages report differences, and
the coordinator sums them by request and instance. Sums do not depend on the order of the reports, so
fan-out, fan-in and streams need no agreement between stages. An instance holds a request if its sum is
positive:

- sending adds 1 for the receiver, which may die with the message unread, and 1 for the sender, which may
  die with the message unsent;
- receiving subtracts 1 for the sender and adds 1 for the receiver, in case the sender's report is lost;
- finishing subtracts 2 for the stage for each time it received the request.

The coordinator counts the requests it sends and the results it receives in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable


class InFlightCounts:
    """The coordinator's sums, by request and instance, for the requests it tracks."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def track(self, request_id: str) -> None:
        self._counts[request_id] = {}

    def forget(self, request_id: str) -> None:
        self._counts.pop(request_id, None)

    def add(self, request_id: str, instance: str, difference: int) -> int:
        """Returns the new sum; 0 for a request that is not tracked."""
        counts = self._counts.get(request_id)
        if counts is None:
            return 0
        total = counts.get(instance, 0) + difference
        if total:
            counts[instance] = total
        else:
            counts.pop(instance, None)
        return total

    def is_settled(self, request_id: str) -> bool:
        """True if all sums are zero: no instance holds the request, and no report is missing."""
        return not self._counts.get(request_id)

    def holders(self, request_id: str) -> list[str]:
        """The instances that hold the request."""
        return [instance for instance, total in self._counts.get(request_id, {}).items() if total > 0]

    def held_by(self, instances: Iterable[str]) -> list[str]:
        """The requests that at least one of these instances holds."""
        names = set(instances)
        return [
            request_id
            for request_id, counts in self._counts.items()
            if any(total > 0 and instance in names for instance, total in counts.items())
        ]
