"""What the coordinator knows of a request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from sglang_omni.proto import Replicas, RequestState, StageTime, StreamMessage

# Whose request it is, and what that owner calls it.
OwnedId = tuple[str | None, str]


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """One request from its submission until its caller is answered.

    ``wire_id`` is what stages know it by, and nothing else was ever known by. ``owner`` is whose request it
    is: ids are those of one owner. ``streaming`` holds the stages that have
    streamed to the caller and not yet said that they are done. ``replicas`` holds, by stage, the replica
    that serves it; None where no stage is replicated, or while it has not been sent in.
    """

    request_id: str
    wire_id: str
    terminals: frozenset[str]
    outcome: asyncio.Future[Any]
    chunks: asyncio.Queue[StreamMessage | None] | None
    state: RequestState = RequestState.PENDING
    results: dict[str, Any] = field(default_factory=dict)
    streaming: set[str] = field(default_factory=set)
    timings: dict[str, StageTime] = field(default_factory=dict)
    replicas: Replicas = None
    owner: str | None = None

    @property
    def name(self) -> OwnedId:
        """What no other running request has."""
        return self.owner, self.request_id

    def add_time(self, stage: str, work: float, wait: float) -> None:
        """Adds the seconds that a visit to ``stage`` took; a request may come back to one."""
        time = self.timings.get(stage)
        if time is None:
            self.timings[stage] = {"work": work, "wait": wait}
        else:
            time["work"] += work
            time["wait"] += wait
