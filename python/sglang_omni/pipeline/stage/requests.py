"""The requests a stage works on or has let go of, and what it reports of them to the coordinator."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sglang_omni.pipeline.stage.edges.coordinator import COORDINATOR
from sglang_omni.pipeline.stage.edges.queue import EdgeQueue
from sglang_omni.proto import ProgressMessage, Replicas
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.scheduling.recent_ids import RecentIds
from sglang_omni.scheduling.step_trace import StepTrace, VisitDetail
from sglang_omni.scheduling.work_clock import WorkClock

# Half of what the coordinator remembers, so that it never gives out an id that is still refused here.
_REMEMBERED_IDS = 10_000
# Stream messages that a request may have here before it can start.
_HELD_MOST = 4096
# One report covers what happened in this time. It is late enough that the processor is done with handing
# the request on, and early enough that a caller who has the result can soon see where the time went.
_REPORT_INTERVAL_S = 0.01
# A report that is later than this says so. No process is started again in less.
_LATE_S = 0.1


class ProgressReporter:
    """Counts references to a stage's requests, and reports the differences in batches.

    ``coordinator/requests.py`` adds up the differences of all stages, in any order: a request that a stage
    holds is above zero there.

    Args:
        instance: The reporting instance.
        send: Takes a finished report; called in the event loop's thread.
    """

    def __init__(self, instance: str, send: Callable[[ProgressMessage], None]) -> None:
        self._instance = instance
        self._send = send
        self._changes: dict[tuple[str, str], int] = {}
        self._spans: list[tuple[str, float, float, float]] = []
        self._details: dict[str, VisitDetail] = {}
        self._timer: asyncio.TimerHandle | None = None
        # When the first of the changes was counted.
        self._since = 0.0

    def handed_on(self, request_id: str, target: str | None) -> None:
        """The request, or a stream of it, goes to ``target``; None is the coordinator."""
        self._change(request_id, self._instance, 1)
        if target is not None:
            self._change(request_id, target, 1)
        self._schedule()

    def received(self, request_id: str, source: str | None) -> None:
        """The request, or a stream of it, came from ``source``; None is the coordinator."""
        self._change(request_id, self._instance, 1)
        if source is not None:
            self._change(request_id, source, -1)
        self._schedule()

    def stream_began(self, request_id: str) -> None:
        """The first message of a stream of the request came."""
        self.received(request_id, None)

    def stream_ended(self, request_id: str, source: str) -> None:
        """No more of the stream from ``source`` is needed. Until then that instance holds the request: it may
        die with the rest unsent."""
        self._change(request_id, source, -1)
        self._schedule()

    def finished(
        self,
        request_id: str,
        times_received: int,
        work: float | None = None,
        wait: float = 0.0,
        *,
        began: float = 0.0,
        detail: VisitDetail | None = None,
        at_once: bool = False,
    ) -> None:
        """The stage is done with all that it received for the request.

        Args:
            work: Seconds of work on it; None if the stage had let go of the request before.
            wait: Seconds that it waited in the stage.
            began: When it came to the stage, in Unix time.
            detail: What was done with it when, if it is traced.
            at_once: True if the caller's answer waits for the report: it has had chunks from the stage.
        """
        self._change(request_id, self._instance, -2 * times_received)
        if work is not None:
            self._spans.append((request_id, work, wait, began))
        if detail is not None:
            self._details[request_id] = detail
        if at_once:
            self.flush()
        else:
            self._schedule()

    def flush(self) -> None:
        """Reports what has changed since the last report, if anything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._changes and not self._spans:
            return
        late_s = time.monotonic() - self._since
        message = ProgressMessage(
            from_stage=self._instance,
            changes=[(request_id, stage, total) for (request_id, stage), total in self._changes.items()],
            spans=self._spans,
            details=dict[str, Any](self._details) or None,
            late_s=late_s if late_s > _LATE_S else 0.0,
        )
        self._changes = {}
        self._spans = []
        self._details = {}
        self._send(message)

    def _change(self, request_id: str, instance: str, difference: int) -> None:
        if not self._changes and not self._spans:
            self._since = time.monotonic()
        key = (request_id, instance)
        total = self._changes.get(key, 0) + difference
        if total:
            self._changes[key] = total
        else:
            del self._changes[key]

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_REPORT_INTERVAL_S, self.flush)


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request, from its first message until its last result is routed.

    Attributes:
        since: When it came, in seconds of the monotonic clock.
        times_received: Payloads and streams that were handed to this stage for it.
        has_payload: A payload of it has come.
        started: The scheduler has it.
        running: Payloads the scheduler has and has not answered.
        sources: The instances that stream to this one for it, or have.
        unended: Those of them whose stream has not ended, but for the coordinator, which counts for itself.
        held: Stream messages that wait until the scheduler has the payload.
        nbytes: Bytes that came through a relay for it and that the scheduler does not have yet.
        work: Seconds that the scheduler has worked on it, by its ``WorkClock``.
        chunks_sent: How many chunks went to each stream target.
        samples_sent: How many samples of sound went to the caller in chunks.
        replicas: Which replica of each replicated stage serves it; None if no stage is replicated.
    """

    since: float = field(default_factory=time.monotonic)
    times_received: int = 0
    has_payload: bool = False
    started: bool = False
    running: int = 0
    sources: set[str] = field(default_factory=set)
    unended: set[str] = field(default_factory=set)
    held: list[IncomingMessage] = field(default_factory=list)
    nbytes: int = 0
    work: float = 0.0
    chunks_sent: dict[str, int] = field(default_factory=dict)
    samples_sent: int = 0
    replicas: Replicas = None

    def hold(self, message: IncomingMessage) -> None:
        """Keeps a stream message until the scheduler has the payload.

        Raises:
            RuntimeError: Too many wait: the source of an awaited payload has stopped.
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
        progress: Notified of every request that comes and goes.
        clock: Measures the scheduler's work on each request. Without one, all of a request's time is work.
        to_coordinator: The queue of what a request's caller gets from this stage. The coordinator waits for
            no chunk of a request that is reported as finished: the report leaves behind them.

    Attributes:
        active: By request.
        traces: What is recorded of those that are traced.
    """

    def __init__(
        self,
        progress: ProgressReporter,
        clock: WorkClock | None = None,
        to_coordinator: EdgeQueue | None = None,
    ) -> None:
        self.active: dict[str, RequestRecord] = {}
        self.traces: dict[str, StepTrace] = {}
        self._progress = progress
        self._measures_work = clock is not None
        if clock is not None:
            clock.records = self.active
            clock.traces = self.traces
        self._to_coordinator = to_coordinator
        self._dropped = RecentIds(_REMEMBERED_IDS)
        # Finished requests, each with the streams that were counted for it.
        self._finished: OrderedDict[str, set[str]] = OrderedDict()

    def is_dropped(self, request_id: str) -> bool:
        """True if the request was aborted, or has failed here."""
        return request_id in self._dropped

    def open(self, request_id: str, replicas: Replicas = None) -> RequestRecord:
        """The request's record; a new one with these replicas if the request is new here."""
        record = self.active.get(request_id)
        if record is None:
            record = self.active[request_id] = RequestRecord(replicas=replicas)
            self._finished.pop(request_id, None)
        return record

    def receive_payload(
        self, request_id: str, source: str | None, replicas: Replicas = None
    ) -> RequestRecord:
        """Counts a payload that came from an instance, or from the coordinator if ``source`` is None."""
        record = self.open(request_id, replicas)
        record.times_received += 1
        record.has_payload = True
        self._progress.received(request_id, source)
        return record

    def receive_stream(
        self, request_id: str, source: str, replicas: Replicas = None, *, ends: bool = False
    ) -> RequestRecord | None:
        """Counts a stream by its first message and its end. None if the request is already finished here.

        Args:
            ends: True if the message is the stream's last.
        """
        if request_id not in self.active and (counted := self._finished.get(request_id)) is not None:
            if source not in counted:
                counted.add(source)
                self._progress.received(request_id, None if source == COORDINATOR else source)
                self._progress.finished(request_id, 1)
            return None
        record = self.open(request_id, replicas)
        if source not in record.sources:
            record.sources.add(source)
            if source != COORDINATOR:
                record.unended.add(source)
            record.times_received += 1
            self._progress.stream_began(request_id)
        if ends and source in record.unended:
            record.unended.remove(source)
            self._progress.stream_ended(request_id, source)
        return record

    def trace(self, request_id: str) -> StepTrace:
        """Records from now on what the stage does with an active request when."""
        if (trace := self.traces.get(request_id)) is None:
            trace = self.traces[request_id] = StepTrace(self.active[request_id].since)
        return trace

    def hand_on(self, request_id: str, target: str | None, *, stream: bool = False) -> None:
        """Counts a payload, or a stream, of the request that goes to an instance; None is the coordinator."""
        self._progress.handed_on(request_id, target)
        if (trace := self.traces.get(request_id)) is not None:
            trace.hop("to", target or "coordinator", stream=stream)

    def flush_progress(self) -> None:
        """Reports at once what was counted."""
        self._progress.flush()

    def finish(self, request_id: str) -> None:
        """The request's last result is routed."""
        record = self.active.pop(request_id)
        trace = self.traces.pop(request_id, None)
        for source in record.unended:
            self._progress.stream_ended(request_id, source)
        self._finished[request_id] = record.sources
        if len(self._finished) > _REMEMBERED_IDS:
            self._finished.popitem(last=False)
        seconds = time.monotonic() - record.since
        work = min(record.work, seconds) if self._measures_work else seconds
        report = partial(
            self._progress.finished,
            request_id,
            record.times_received,
            work,
            seconds - work,
            began=time.time() - seconds,
            detail=None if trace is None else trace.detail(),
            at_once=COORDINATOR in record.chunks_sent,
        )
        if self._to_coordinator is None or self._to_coordinator.is_idle:
            report()
        else:
            self._to_coordinator.put(request_id, _call, report)

    def drop(self, request_id: str) -> None:
        """The request is aborted, or has failed: what still comes of it is refused."""
        self.active.pop(request_id, None)
        self.traces.pop(request_id, None)
        self._dropped.add(request_id)


async def _call(report: Callable[[], None]) -> None:
    report()
