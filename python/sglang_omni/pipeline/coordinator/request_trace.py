"""Where a request was when, as the coordinator knows it: the base of its timings, trace and spans."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.config.plan.instances import stage_of
from sglang_omni.proto import RequestState, StageTime


@dataclass(slots=True)
class StageVisit:
    """A request's time in one instance of a stage.

    Attributes:
        instance: The instance.
        began: When the request came, in Unix time by the clock of the instance's host.
        work: Seconds of work on it.
        wait: Seconds for which it was there besides.
        detail: A ``VisitDetail`` if the request was traced.
    """

    instance: str
    began: float
    work: float
    wait: float
    detail: dict[str, Any] | None = None


@dataclass(slots=True)
class RequestTrace:
    """One request from its submission to its end. Times are in Unix time.

    Attributes:
        submitted: When the coordinator got it.
        sent: When it went to the entry stage; None if it never did.
        ended: When its caller was answered; None while it runs.
        state: How it ended.
        timings: Seconds in each stage that it has left.
        visits: Its visits to stages, in the order in which they ended.
    """

    submitted: float = field(default_factory=time.time)
    sent: float | None = None
    ended: float | None = None
    state: RequestState = RequestState.PENDING
    timings: dict[str, StageTime] = field(default_factory=dict)
    visits: list[StageVisit] = field(default_factory=list)

    def add(self, visit: StageVisit) -> None:
        """Adds a visit; a request may come to a stage more than once."""
        self.visits.append(visit)
        time = self.timings.get(stage := stage_of(visit.instance))
        if time is None:
            self.timings[stage] = {"work": visit.work, "wait": visit.wait}
        else:
            time["work"] += visit.work
            time["wait"] += visit.wait
