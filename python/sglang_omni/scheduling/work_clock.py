"""How long a scheduler has worked on each of its requests, as opposed to having it wait."""

from __future__ import annotations

from collections.abc import Iterable


class WorkClock:
    """Seconds of work by request. A stage opens and closes a request's, its scheduler adds to it.

    A scheduler has one as ``work_clock``, and adds the time of a step before it hands out what the step has
    made. What was done for several requests at once is the work of each.
    """

    def __init__(self) -> None:
        # A cell for each, so that adding to one which is closed meanwhile brings nothing back.
        self._cells: dict[str, list[float]] = {}

    def open(self, request_id: str) -> None:
        self._cells[request_id] = [0.0]

    def add(self, request_ids: Iterable[str], seconds: float) -> None:
        """To those that are open; from the scheduler's threads, one at a time for a request."""
        for request_id in request_ids:
            if (cell := self._cells.get(request_id)) is not None:
                cell[0] += seconds

    def close(self, request_id: str) -> float:
        """The seconds of work; 0 for a request that is not open."""
        cell = self._cells.pop(request_id, None)
        return 0.0 if cell is None else cell[0]
