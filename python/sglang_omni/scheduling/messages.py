"""The messages between a stage and its scheduler, and the interface of every scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from queue import Queue
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from sglang_omni.scheduling.ranks import RankGroup


@dataclass(slots=True)
class IncomingMessage:
    """Stage -> scheduler. ``data`` is a StagePayload, a StreamItem, or None for ``stream_done``.

    A ``stream_done`` carries the name of its source stage if the scheduler must tell several apart.
    """

    request_id: str
    type: Literal["new_request", "stream_chunk", "stream_done"]
    data: Any = None


@dataclass(slots=True)
class OutgoingMessage:
    """Scheduler -> stage.

    ``result`` carries the stage's output and ends the request here. ``stream`` carries a chunk for
    ``target``, by default for the stage's ``stream_to`` targets, or the caller if it has none. ``error``
    carries the exception.
    """

    request_id: str
    type: Literal["result", "stream", "error"]
    data: Any = None
    target: str | None = None
    metadata: dict[str, Any] | None = None


class Scheduler(Protocol):
    """Runs a stage's work. ``start`` blocks until ``stop``; the stage calls it in a thread of its own.

    With a ``work_clock``, a ``WorkClock``, a scheduler reports how long it worked on each request. Without
    one, all the time that a request is in the stage counts as work.

    With a ``StepMonitor``, its process is restarted if one of its steps does not end, or if all fail. Without
    one, only the heartbeat of the process is watched.
    """

    inbox: Queue[IncomingMessage]
    outbox: Queue[OutgoingMessage]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def abort(self, request_id: str) -> None: ...


@runtime_checkable
class RankedScheduler(Protocol):
    """A scheduler that can be one of several ranks, which compute one model together."""

    def join_ranks(self, ranks: RankGroup) -> None: ...
