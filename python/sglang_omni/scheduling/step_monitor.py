"""Since when the computing threads of a process are in their present steps, and how many failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakSet

from sglang_omni.proto import RequestError

# Request ids that a row of failures remembers: it is enough to know that they are several.
_MOST_IDS = 16

_monitors: WeakSet[StepMonitor] = WeakSet()


@dataclass
class Failures:
    """Steps in a row that failed, without a result between them.

    Attributes:
        since: When the first of them failed, by ``time.perf_counter``.
        request_ids: Some of the requests that were in them.
        error: The last one's: ``RuntimeError: could not create a primitive``.
    """

    since: float
    steps: int = 0
    request_ids: set[str] = field(default_factory=set)
    error: str = ""


class StepMonitor:
    """What the threads of one scheduler do, told by them and read by the process's heartbeat.

    A scheduler has one as ``steps``. It calls ``begin`` and ``end`` around what may take long or never
    return: not around a wait for its next message, or for room in its outbox. All clocks of a process are
    known by themselves, also of schedulers that are inside of others.
    """

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._failures: Failures | None = None
        self._lock = threading.Lock()
        _monitors.add(self)

    def begin(self) -> float:
        """The calling thread begins a step. Returns the time, by ``time.perf_counter``."""
        began = self._began[threading.get_ident()] = time.perf_counter()
        return began

    def end(self) -> None:
        """The calling thread's step is over, however it went."""
        self._began[threading.get_ident()] = 0.0

    def fail(self, error: BaseException, request_ids: Iterable[str]) -> None:
        """A step of these requests failed. What they themselves are at fault for does not count."""
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
        """A request has its result: what failed before was no fault of the process."""
        if self._failures is not None:
            self._failures = None

    def present_steps(self) -> Iterator[tuple[int, float]]:
        """By thread, since when it has been in its present step; those that are idle are left out."""
        return ((thread, began) for thread, began in list(self._began.items()) if began)

    @property
    def failures(self) -> Failures | None:
        """The present row of failures; None if there is none."""
        return self._failures


def step_monitors() -> list[StepMonitor]:
    """All of this process that are in use."""
    return list(_monitors)
