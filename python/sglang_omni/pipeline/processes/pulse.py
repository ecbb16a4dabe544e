"""The heartbeat of a worker process: that its event loop runs, and what its computing threads do."""

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
    """What a process says of itself.

    Attributes:
        step_s: For how long its longest present step has lasted; 0 if all its threads are idle.
        step_thread: The thread that is in that step.
        failed_steps: Of the scheduler with the longest row of failures, the steps in it; 0 if there is none.
        failed_requests: How many requests were in them, as far as that matters.
        failing_s: How long ago the first of them failed.
        error: What the last of them raised.
    """

    step_s: float = 0.0
    step_thread: str = ""
    failed_steps: int = 0
    failed_requests: int = 0
    failing_s: float = 0.0
    error: str = ""


def take_pulse() -> Pulse:
    """That of this process."""
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
    """Yields a pulse every second until all of these are done.

    Raises what the first of them raises that fails.
    """
    while True:
        done, pending = await asyncio.wait(running, timeout=PULSE_S, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()
        if not pending:
            return
        yield take_pulse()


class Vitals:
    """What is known of a process's heartbeat by its parent. Times are those of the event loop.

    Args:
        through_host: Whether it is its host that hears it, and tells.

    Attributes:
        pulse: The last one.
    """

    def __init__(self, *, through_host: bool = False) -> None:
        self.pulse = Pulse()
        self._through_host = through_host
        self._told_silent_s = 0.0
        self._heard: float | None = None

    def hear(self, pulse: Pulse, silent_s: float = 0.0) -> None:
        """It was heard of, so many seconds ago."""
        self.pulse = pulse
        self._told_silent_s = silent_s
        self._heard = asyncio.get_running_loop().time() - silent_s

    def excuse(self, seconds: float) -> None:
        """The parent itself could not listen for so long."""
        if self._heard is not None:
            self._heard += seconds

    @property
    def own_silent_s(self) -> float:
        """For how long the process itself is known to be silent, and not just the way to its host."""
        return self._told_silent_s if self._through_host else self.silent_s

    @property
    def silent_s(self) -> float:
        """For how long nothing was heard; 0 before the first pulse."""
        return 0.0 if self._heard is None else asyncio.get_running_loop().time() - self._heard
