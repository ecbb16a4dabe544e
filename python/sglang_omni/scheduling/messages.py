"""The messages between a stage and its scheduler, and the interface of every scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from queue import Queue
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from sglang_omni.scheduling.ranks import RankGroup
    from sglang_omni.scheduling.work_clock import WorkClock


@dataclass(slots=True)
class IncomingMessage:
    """Stage -> scheduler. ``data`` is a StagePayload, a StreamItem, or None for ``stream_done``.

    A ``stream_done`` carries the name of its source stage if the scheduler has several.
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

    The protocols below are optional. So is a ``StepMonitor``: with one, the process is restarted if a step
    does not end, or if all steps fail; without one, only the heartbeat of the process is watched.
    """

    inbox: Queue[IncomingMessage]
    outbox: Queue[OutgoingMessage]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def abort(self, request_id: str) -> None:
        """Drops a request, if it is known.

        The stage calls it in its event loop's thread, at any time. Messages of the request that wait in
        ``inbox`` already still come after it, a ``new_request`` too: a scheduler that keeps anything for a
        request remembers the latest aborted ids (``RecentIds``), and drops what comes of them.
        """
        ...


@runtime_checkable
class HasWorkClock(Protocol):
    """A scheduler that measures its work on each request. In others, all time in the stage counts as work."""

    work_clock: WorkClock


@runtime_checkable
class HasStats(Protocol):
    """A scheduler with numbers for ``/metrics``; names that end in ``_total`` are counters."""

    def stats(self) -> Mapping[str, float]: ...


@runtime_checkable
class HasCache(Protocol):
    """A scheduler with a cache, which ``flush_cache`` empties of all that no request uses."""

    def flush_cache(self) -> None: ...


@runtime_checkable
class HasWarmUp(Protocol):
    """A scheduler that can compute something small before ``start``, of which nothing is left afterwards."""

    def warm_up(self) -> None: ...


@runtime_checkable
class RankedScheduler(Protocol):
    """A scheduler that can be one of several ranks, which compute one model together."""

    def join_ranks(self, ranks: RankGroup) -> None: ...
