"""What a stage knows of the requests it works on, and of those it no longer does."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sglang_omni.pipeline.stage.progress import ProgressReporter
from sglang_omni.proto import Replicas
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.scheduling.recent_ids import RecentIds
from sglang_omni.scheduling.work_clock import WorkClock

# Half of what the coordinator remembers, so that it never gives out an id that is still refused here.
_REMEMBERED_IDS = 10_000
# Stream messages that a request may have here before it can start.
_HELD_MOST = 4096


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request, from the first message of it until its last result is routed.

    Attributes:
        since: When it came, in seconds of the monotonic clock.
        times_received: Payloads and streams that were handed to this stage for it.
        has_payload: Whether a payload of it has come.
        started: Whether the scheduler has it.
        running: Payloads the scheduler has and has not answered.
        sources: The stages that stream to this one for it.
        held: Stream messages that wait until the scheduler has the payload.
        nbytes: What came through a relay for it and the scheduler does not have yet.
        work: Seconds that the scheduler has worked on it, by its ``WorkClock``.
        chunks_sent: How many chunks went to each stream target; the coordinator's is None.
        replicas: Which replica of each replicated stage serves it; None where no stage is replicated.
    """

    since: float = field(default_factory=time.monotonic)
    times_received: int = 0
    has_payload: bool = False
    started: bool = False
    running: int = 0
    sources: set[str] = field(default_factory=set)
    held: list[IncomingMessage] = field(default_factory=list)
    nbytes: int = 0
    work: float = 0.0
    chunks_sent: dict[str | None, int] = field(default_factory=dict)
    replicas: Replicas = None

    def hold(self, message: IncomingMessage) -> None:
        """Keeps a stream message until the scheduler has the payload.

        Raises:
            RuntimeError: Too many wait; a source whose payload is waited for has stopped.
        """
        if len(self.held) >= _HELD_MOST:
            raise RuntimeError(
                f"{_HELD_MOST} stream messages wait for a payload of another source; a stage that can start "
                "without it sets can_accept_stream_before_payload"
            )
        self.held.append(message)


class RequestTable:
    """The requests of one stage; bounded whatever arrives late.

    Args:
        progress: Told of every request that comes and goes.
        clock: Tells how long the scheduler worked on a request. Without one, all of its time is work.
        after_sent: ``after_sent(request_id, report)`` calls ``report`` once everything the request's caller
            is to get from this stage has left; by default at once.
    """

    def __init__(
        self,
        progress: ProgressReporter,
        clock: WorkClock | None = None,
        after_sent: Callable[[str, Callable[[], None]], None] = lambda request_id, report: report(),
    ) -> None:
        self.active: dict[str, RequestRecord] = {}
        self._progress = progress
        self._measures_work = clock is not None
        if clock is not None:
            clock.records = self.active
        self._after_sent = after_sent
        self._dropped = RecentIds(_REMEMBERED_IDS)
        # Finished requests, each with the streams that were counted for it.
        self._finished: OrderedDict[str, set[str]] = OrderedDict()

    def is_dropped(self, request_id: str) -> bool:
        """Whether the request was aborted, or has failed here."""
        return request_id in self._dropped

    def open(self, request_id: str, replicas: Replicas = None) -> RequestRecord:
        """The request's record, a new one with these replicas where it is new here."""
        record = self.active.get(request_id)
        if record is None:
            record = self.active[request_id] = RequestRecord(replicas=replicas)
            self._finished.pop(request_id, None)
        return record

    def receive_payload(
        self, request_id: str, source: str | None, replicas: Replicas = None
    ) -> RequestRecord:
        """Counts a payload that came from a stage, or from the coordinator where ``source`` is None."""
        record = self.open(request_id, replicas)
        record.times_received += 1
        record.has_payload = True
        self._progress.received(request_id, source)
        return record

    def receive_stream(self, request_id: str, source: str, replicas: Replicas = None) -> RequestRecord | None:
        """Counts the first message of a stream. None where the request is already finished here."""
        if request_id not in self.active and (counted := self._finished.get(request_id)) is not None:
            if source not in counted:
                counted.add(source)
                self._progress.received(request_id, source)
                self._progress.finished(request_id, 1)
            return None
        record = self.open(request_id, replicas)
        if source not in record.sources:
            record.sources.add(source)
            record.times_received += 1
            self._progress.received(request_id, source)
        return record

    def finish(self, request_id: str) -> None:
        """The request's last result is routed."""
        record = self.active.pop(request_id)
        self._finished[request_id] = record.sources
        if len(self._finished) > _REMEMBERED_IDS:
            self._finished.popitem(last=False)
        seconds = time.monotonic() - record.since
        work = min(record.work, seconds) if self._measures_work else seconds
        report = partial(self._progress.finished, request_id, record.times_received, work, seconds - work)
        self._after_sent(request_id, report)

    def drop(self, request_id: str) -> None:
        """The request is aborted, or has failed: what still comes of it is refused."""
        self.active.pop(request_id, None)
        self._dropped.add(request_id)
