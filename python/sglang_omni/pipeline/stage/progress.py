"""Reports which requests a stage holds, as differences; ``coordinator/in_flight.py`` sums them up."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from sglang_omni.proto import ProgressMessage

# One report covers what happened in this time. It is late enough that the processor is done with handing
# the request on, and early enough that a caller who has the result can soon see where the time went.
_REPORT_INTERVAL_S = 0.01
_FINISHED_INTERVAL_S = 0.002


class ProgressReporter:
    """A stage's side: collects differences and hands them over in batches.

    Args:
        stage: The reporting stage's name.
        send: Takes a finished report; called in the event loop's thread.
    """

    def __init__(self, stage: str, send: Callable[[ProgressMessage], None]) -> None:
        self._stage = stage
        self._send = send
        self._changes: dict[tuple[str, str], int] = {}
        self._spans: list[tuple[str, float, float]] = []
        self._timer: asyncio.TimerHandle | None = None
        # When the timer goes off, and how long after it was set.
        self._due = self._interval = math.inf

    def handed_on(self, request_id: str, target: str | None) -> None:
        """The request, or a stream of it, goes to ``target``; to the coordinator where that is None."""
        self._change(request_id, self._stage, 1)
        if target is not None:
            self._change(request_id, target, 1)
        self._schedule()

    def received(self, request_id: str, source: str | None) -> None:
        """The request, or a stream of it, came from ``source``; from the coordinator where that is None."""
        self._change(request_id, self._stage, 1)
        if source is not None:
            self._change(request_id, source, -1)
        self._schedule()

    def finished(
        self, request_id: str, times_received: int, work: float | None = None, wait: float = 0.0
    ) -> None:
        """This stage is done with what it received, after seconds of ``work`` and ``wait``; None where it had
        let go of the request before."""
        self._change(request_id, self._stage, -2 * times_received)
        if work is not None:
            self._spans.append((request_id, work, wait))
        self._schedule(_FINISHED_INTERVAL_S)

    def flush(self) -> None:
        """Reports what has changed since the last report, if anything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = self._interval = math.inf
        if not self._changes and not self._spans:
            return
        message = ProgressMessage(
            from_stage=self._stage,
            changes=[(request_id, stage, total) for (request_id, stage), total in self._changes.items()],
            spans=self._spans,
        )
        self._changes = {}
        self._spans = []
        self._send(message)

    def _change(self, request_id: str, stage: str, difference: int) -> None:
        key = (request_id, stage)
        total = self._changes.get(key, 0) + difference
        if total:
            self._changes[key] = total
        else:
            del self._changes[key]

    def _schedule(self, interval: float = _REPORT_INTERVAL_S) -> None:
        # A timer that was set before this for no longer is due first.
        if self._interval <= interval:
            return
        due = time.monotonic() + interval
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due, self._interval = due, interval
            self._timer = asyncio.get_running_loop().call_at(due, self.flush)
