"""How long a scheduler has worked on each of its requests, as opposed to having it wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class Worked(Protocol):
    """What is known of a request, with the seconds of work on it."""

    work: float


class WorkClock:
    """Adds up the seconds of work on the requests of a stage.

    A scheduler has one as ``work_clock``, and adds the time of a step before it hands out what the step has
    made. What was done for several requests at once is the work of each.

    Attributes:
        records: The requests that the stage has now; the stage sets it to its own table. Seconds of others
            are not counted.
    """

    def __init__(self) -> None:
        self.records: Mapping[str, Worked] = {}

    def add(self, request_id: str, seconds: float) -> None:
        """Called by the scheduler's threads, by one at a time for a request."""
        if (record := self.records.get(request_id)) is not None:
            record.work += seconds

    def add_to_all(self, request_ids: Iterable[str], seconds: float) -> None:
        """As ``add``, for a step of several requests."""
        for request_id in request_ids:
            self.add(request_id, seconds)
