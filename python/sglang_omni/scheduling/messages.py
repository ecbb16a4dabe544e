"""What a Stage and its scheduler say to one another, and the interface every scheduler has."""

from __future__ import annotations

from dataclasses import dataclass
from queue import Queue
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from sglang_omni.scheduling.ranks import RankGroup


@dataclass(slots=True)
class IncomingMessage:
    """Stage -> scheduler. ``data`` is a StagePayload, a StreamItem, or None for ``stream_done``.

    A stream's end carries the stage it came from as ``data`` where the scheduler must tell several apart.
    """

    request_id: str
    type: Literal["new_request", "stream_chunk", "stream_done"]
    data: Any = None


@dataclass(slots=True)
class OutgoingMessage:
    """Scheduler -> stage.

    ``result`` carries the stage's output and ends the request here; ``stream`` a chunk for ``target``,
    or for the stage's ``stream_to`` targets (the caller, where it has none); ``error`` the exception.
    """

    request_id: str
    type: Literal["result", "stream", "error"]
    data: Any = None
    target: str | None = None
    metadata: dict[str, Any] | None = None


class Scheduler(Protocol):
    """What runs a stage's work. ``start`` blocks until ``stop``; the stage gives it a thread of its own.

    One that has a ``work_clock``, a ``WorkClock``, tells by it how long it worked on each request. Of
    another, all the time that a request is in the stage counts as work.

    One that tells a ``StepMonitor`` of its steps is ended with its process if one of them does not end, or if
    all of them fail. Of another, only the heartbeat of its process is watched.
    """

    inbox: Queue[IncomingMessage]
    outbox: Queue[OutgoingMessage]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def abort(self, request_id: str) -> None: ...


@runtime_checkable
class RankedScheduler(Protocol):
    """What a scheduler also has that can be one of several ranks, which compute one model together."""

    def join_ranks(self, ranks: RankGroup) -> None: ...
