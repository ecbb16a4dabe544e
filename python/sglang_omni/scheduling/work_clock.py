"""Measures how long a scheduler works on each request, apart from the time that the request waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from sglang_omni.scheduling.step_trace import StepTrace


class Worked(Protocol):
    """A request's record with the seconds of ``work`` on it."""

    work: float


class WorkClock:
    """Adds up the seconds of work on each request of a stage.

    A scheduler has one as ``work_clock``, and adds the time of a step before it puts out the step's results.
    A step for several requests counts in full for each of them.

    Attributes:
        records: The stage's present requests, set by the stage. Other requests are not counted.
        traces: Those of them that are traced, set by the stage; empty but for tracing.
    """

    def __init__(self) -> None:
        self.records: Mapping[str, Worked] = {}
        self.traces: Mapping[str, StepTrace] = {}

    def add(self, request_id: str, seconds: float) -> None:
        """Adds the seconds of a step to its only request.

        Called in any of the scheduler's threads, but for one request only by one at a time.
        """
        self.add_to_all((request_id,), seconds)

    def add_to_all(
        self, request_ids: Collection[str], seconds: float, kind: Callable[[str], str] = lambda _: "step"
    ) -> None:
        """Adds the seconds of a step that has just ended to each of its requests.

        Args:
            kind: What the step was for a request, as its trace names it; called for traced requests only.
        """
        for request_id in request_ids:
            if (record := self.records.get(request_id)) is not None:
                record.work += seconds
        if self.traces:
            for request_id in request_ids:
                if (trace := self.traces.get(request_id)) is not None:
                    trace.step(kind(request_id), seconds, len(request_ids))
