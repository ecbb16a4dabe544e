"""Finds processes that hang, or fail every request; says so, and ends them to be started again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from sglang_omni.config import WatchdogConfig
from sglang_omni.pipeline.coordinator.replicas import ReplicaTable
from sglang_omni.pipeline.processes.launcher import LaunchedProcess
from sglang_omni.pipeline.processes.supervisor import WorkerSlot

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
# Failures are the process's own, and not those of some requests, only if for so long nothing has succeeded:
# requests made to fail come together with others that do not, and then end nothing.
FAILING_S = 10.0
FEWEST_FAILED_REQUESTS = 2
# A process that failed every request, and whose successor does, is left alone for twice as long each time:
# whatever makes it fail may be sent by a client, which must not have it started again and again.
_SPARED_S = 60.0
_SPARED_AT_MOST_S = 3600.0


class Watchdog:
    """Looks at the heartbeats of the processes that are up.

    - One that is silent for ``unhealthy_after`` gets no new requests that others could serve, and ``/health``
      tells; it is served again if it is heard of again.
    - One that is silent for ``heartbeat_timeout`` (itself, and not just its host), is in one step for
      ``step_timeout``, or has failed ``max_failed_steps`` steps of several requests in a row, without a
      result for ten seconds, is ended. Its supervisor starts another. The ranks of a stage go together.

    Args:
        workers: What there is to look at now.
        replicas: Told which instances do not answer.
    """

    def __init__(
        self, config: WatchdogConfig, workers: Callable[[], Sequence[WorkerSlot]], replicas: ReplicaTable
    ) -> None:
        self._config = config
        self._workers = workers
        self._replicas = replicas
        replicas.unhealthy_after = config.unhealthy_after
        self._ended_for_failing: dict[WorkerSlot, deque[float]] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            late = loop.time() - due
            for worker in list(self._workers()):
                for process in worker.processes:
                    # Time in which this loop was held up says nothing of the processes.
                    process.vitals.excuse(late)
                if worker.is_up and not worker.is_ending:
                    self._look(worker)

    def _look(self, worker: WorkerSlot) -> None:
        for process in worker.processes:
            if (fault := self._fault(worker, process)) is not None:
                logger.error(
                    "Process %r (pid %d) %s: it is ended, with its stacks logged if it can still write them",
                    *(process.name, process.pid, fault),
                )
                worker.end(process, fault)
                self._replicas.mark_hung(worker.stage_names, f"{fault}; it is being ended")
                return
        silent = max(worker.processes, key=lambda process: process.vitals.silent_s)
        if silent.vitals.silent_s > self._config.unhealthy_after:
            fault = _silence(silent)
            if self._replicas.mark_hung(worker.stage_names, fault):
                logger.warning("Process %r (pid %d) %s", silent.name, silent.pid, fault)
        elif self._replicas.clear_hung(worker.stage_names):
            logger.warning("Process %s answers again", worker.name)

    def _fault(self, worker: WorkerSlot, process: LaunchedProcess) -> str | None:
        """What it is to be ended for."""
        limits, vitals = self._config, process.vitals
        if 0 < limits.heartbeat_timeout < vitals.own_silent_s:
            return _silence(process)
        pulse, step_s = vitals.pulse, vitals.pulse.step_s
        if 0 < limits.step_timeout < step_s:
            return f"has been in one step for {step_s:.0f} s (thread {pulse.step_thread!r})"
        if (
            0 < limits.max_failed_steps <= pulse.failed_steps
            and pulse.failed_requests >= FEWEST_FAILED_REQUESTS
            and pulse.failing_s >= FAILING_S
            and not self._is_spared(worker)
        ):
            return (
                f"has failed {pulse.failed_steps} steps in a row, and given no result for "
                f"{pulse.failing_s:.0f} s, the last with {pulse.error}"
            )
        return None

    def _is_spared(self, worker: WorkerSlot) -> bool:
        """Whether it was ended for that too short a time ago. If not, it is about to be."""
        now = asyncio.get_running_loop().time()
        before = self._ended_for_failing.setdefault(worker, deque())
        while before and before[0] < now - 2 * _SPARED_AT_MOST_S:
            before.popleft()
        spared_s = min(_SPARED_S * 2 ** (len(before) - 1), _SPARED_AT_MOST_S) if before else 0.0
        if before and now < before[-1] + spared_s:
            return True
        before.append(now)
        return False


def _silence(process: LaunchedProcess) -> str:
    state = process.state
    return f"has not answered for {process.vitals.silent_s:.0f} s" + (f" and {state}" if state else "")
