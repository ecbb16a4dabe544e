"""Reports hanging and failing steps of a process's schedulers to its heartbeat."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakSet

from sglang_omni.gpu_faults import after_failure
from sglang_omni.proto import RequestError

# The most request ids kept for a row of failures: they only have to show that it is not one request's fault.
_MOST_IDS = 16

_monitors: WeakSet[StepMonitor] = WeakSet()


@dataclass
class Failures:
    """Failed steps in a row, without a result between them.

    Attributes:
        since: When the first one failed, by ``time.perf_counter``.
        request_ids: Some of their requests.
        error: Of the last one, such as ``RuntimeError: could not create a primitive``.
    """

    since: float
    steps: int = 0
    request_ids: set[str] = field(default_factory=set)
    error: str = ""


class StepMonitor:
    """The present steps and the failures of one scheduler, read by its process's heartbeat.

    A scheduler has one as ``steps``, and calls ``begin`` and ``end`` around work that may hang, but not
    around a wait for its next message or for room in its outbox. Every monitor registers itself, also one of
    a scheduler inside another.
    """

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._failures: Failures | None = None
        self._lock = threading.Lock()
        _monitors.add(self)

    def begin(self) -> float:
        """Begins a step of the calling thread. Returns the time, by ``time.perf_counter``."""
        began = self._began[threading.get_ident()] = time.perf_counter()
        return began

    def end(self) -> None:
        """Ends the calling thread's step, whether it failed or not."""
        self._began[threading.get_ident()] = 0.0

    def fail(self, error: BaseException, request_ids: Iterable[str]) -> None:
        """Counts a failed step of these requests, unless the requests themselves are at fault.

        Raises:
            GpuLost: No later step can succeed. The scheduler must end with it.
        """
        thread = threading.get_ident()
        present = self._began.get(thread, 0.0)
        # A GPU that does not answer is found as a step that does not end.
        self._began[thread] = present or time.perf_counter()
        try:
            after_failure(error)
        finally:
            self._began[thread] = present
        if isinstance(error, RequestError) or not isinstance(error, Exception):
            return
        with self._lock:
            failures = self._failures = self._failures or Failures(time.perf_counter())
            failures.steps += 1
            failures.error = f"{type(error).__name__}: {error}"
            for request_id in request_ids:
                if len(failures.request_ids) < _MOST_IDS:
                    failures.request_ids.add(request_id)

    def succeed(self) -> None:
        """Counts a result: the process is not at fault for earlier failures."""
        if self._failures is not None:
            self._failures = None

    def present_steps(self) -> Iterator[tuple[int, float]]:
        """Yields the id of each busy thread, and when its present step began."""
        return ((thread, began) for thread, began in list(self._began.items()) if began)

    @property
    def failures(self) -> Failures | None:
        """The present row of failures, if there is one."""
        return self._failures


def step_monitors() -> list[StepMonitor]:
    """All monitors of this process."""
    return list(_monitors)
