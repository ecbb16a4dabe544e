"""Measures how long a scheduler works on each request, apart from the time that the request waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class Worked(Protocol):
    """A request's record with the seconds of ``work`` on it."""

    work: float


class WorkClock:
    """Adds up the seconds of work on each request of a stage.

    A scheduler has one as ``work_clock``, and adds the time of a step before it puts out the step's results.
    A step for several requests counts in full for each of them.

    Attributes:
        records: The stage's present requests, set by the stage. Other requests are not counted.
    """

    def __init__(self) -> None:
        self.records: Mapping[str, Worked] = {}

    def add(self, request_id: str, seconds: float) -> None:
        """Called in any of the scheduler's threads, but for one request only by one at a time."""
        if (record := self.records.get(request_id)) is not None:
            record.work += seconds

    def add_to_all(self, request_ids: Iterable[str], seconds: float) -> None:
        """Adds the seconds of a step to each of its requests."""
        for request_id in request_ids:
            self.add(request_id, seconds)
