"""The heartbeat of a process: whether its event loop runs, and the state of its computing threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from sglang_omni.scheduling.step_monitor import step_monitors

# Between two heartbeats.
PULSE_S = 1.0
_LONGEST_ERROR = 500


@dataclass(frozen=True)
class Pulse:
    """A process's report on itself.

    Attributes:
        step_s: Seconds that the longest present step has lasted; 0 if all its threads are idle.
        step_thread: The thread that is in that step.
        failed_steps: Steps that have failed in a row, of the scheduler with most of them; 0 if none has.
        failed_requests: How many requests were in them, as far as that matters.
        failing_s: Seconds since the first of them failed.
        error: The error of the last of them.
    """

    step_s: float = 0.0
    step_thread: str = ""
    failed_steps: int = 0
    failed_requests: int = 0
    failing_s: float = 0.0
    error: str = ""


def take_pulse() -> Pulse:
    """The pulse of this process."""
    now = time.perf_counter()
    monitors = step_monitors()
    began, thread = min(
        ((since, thread) for monitor in monitors for thread, since in monitor.present_steps()),
        default=(now, 0),
    )
    rows = [row for monitor in monitors if (row := monitor.failures) is not None]
    worst = max(rows, key=lambda row: row.steps, default=None)
    return Pulse(
        step_s=max(now - began, 0.0),
        step_thread=next((each.name for each in threading.enumerate() if each.ident == thread), ""),
        failed_steps=worst.steps if worst is not None else 0,
        failed_requests=len(worst.request_ids) if worst is not None else 0,
        failing_s=now - worst.since if worst is not None else 0.0,
        error=worst.error[:_LONGEST_ERROR] if worst is not None else "",
    )


async def beat_until_done(running: Collection[asyncio.Future[None]]) -> AsyncIterator[Pulse]:
    """Yield a pulse every second until all of these are done.

    Raises:
        Exception: The error of the first that fails.
    """
    while True:
        done, pending = await asyncio.wait(running, timeout=PULSE_S, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()
        if not pending:
            return
        yield take_pulse()


class Vitals:
    """A process's heartbeat as its parent knows it. Times are those of the event loop.

    Args:
        through_host: The process is on another host, which hears it and tells.

    Attributes:
        pulse: The last one.
    """

    def __init__(self, *, through_host: bool = False) -> None:
        self.pulse = Pulse()
        self._through_host = through_host
        self._told_silent_s = 0.0
        self._heard: float | None = None

    def hear(self, pulse: Pulse, silent_s: float = 0.0) -> None:
        """Note a pulse that came ``silent_s`` seconds ago."""
        self.pulse = pulse
        self._told_silent_s = silent_s
        self._heard = asyncio.get_running_loop().time() - silent_s

    def excuse(self, seconds: float) -> None:
        """Leave out a time in which the parent itself could not listen."""
        if self._heard is not None:
            self._heard += seconds

    @property
    def own_silent_s(self) -> float:
        """Seconds that the process itself is known to be silent, and not only the link to its host."""
        return self._told_silent_s if self._through_host else self.silent_s

    @property
    def silent_s(self) -> float:
        """Seconds without a pulse; 0 before the first."""
        return 0.0 if self._heard is None else asyncio.get_running_loop().time() - self._heard
