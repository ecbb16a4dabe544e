"""Finds processes that hang or fail every request, says so, and ends them for a restart."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from sglang_omni.config.schema.watchdog import WatchdogConfig
from sglang_omni.pipeline.coordinator.instances import ReplicaTable
from sglang_omni.pipeline.processes.launcher import LaunchedProcess
from sglang_omni.pipeline.processes.supervisor import SupervisedProcess

logger = logging.getLogger(__name__)

_POLL_S = 0.5
# Failures count as the process's own, and not as those of some requests, after this time without a success:
# requests that are made to fail come together with others that succeed.
FAILING_S = 10.0
FEWEST_FAILED_REQUESTS = 2
# If its successor fails every request as well, it is spared for this time, and twice as long each time: a
# client may send what makes it fail, and must not have it restarted again and again.
_SPARED_S = 60.0
_SPARED_AT_MOST_S = 3600.0


class Watchdog:
    """Looks at the heartbeats of the processes that are up.

    - A process that is silent for ``unhealthy_after`` gets no new requests that others could serve, and
      ``/health`` says so, until it is heard again.
    - A process is ended if it is silent for ``heartbeat_timeout`` (itself, and not only its host), is in one
      step for ``step_timeout``, or has failed ``max_failed_steps`` steps of several requests in a row without
      a result for ten seconds. The ranks of a stage end together. The supervisor restarts them.

    Args:
        config: The limits.
        processes: Returns the processes to look at now.
        replicas: Told which instances do not answer.
    """

    def __init__(
        self,
        config: WatchdogConfig,
        processes: Callable[[], Sequence[SupervisedProcess]],
        replicas: ReplicaTable,
    ) -> None:
        self._config = config
        self._processes = processes
        self._replicas = replicas
        replicas.unhealthy_after = config.unhealthy_after
        self._ended_for_failing: dict[SupervisedProcess, deque[float]] = {}

    async def run(self) -> None:
        """Watch until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _POLL_S
            await asyncio.sleep(_POLL_S)
            late = loop.time() - due
            for supervised in list(self._processes()):
                for process in supervised.processes:
                    # Nothing was heard while this loop was held up.
                    process.vitals.excuse(late)
                if supervised.is_up and not supervised.is_ending:
                    self._look(supervised)

    def _look(self, supervised: SupervisedProcess) -> None:
        for process in supervised.processes:
            if (fault := self._fault(supervised, process)) is not None:
                logger.error(
                    "Process %r (pid %d) %s: it is ended, with its stacks logged if it can still write them",
                    *(process.name, process.pid, fault),
                )
                supervised.end(process, fault)
                self._replicas.mark_hung(supervised.instances, f"{fault}; it is being ended")
                return
        silent = max(supervised.processes, key=lambda process: process.vitals.silent_s)
        if silent.vitals.silent_s > self._config.unhealthy_after:
            fault = _silence(silent)
            if self._replicas.mark_hung(supervised.instances, fault):
                logger.warning("Process %r (pid %d) %s", silent.name, silent.pid, fault)
        elif self._replicas.clear_hung(supervised.instances):
            logger.warning("Process %s answers again", supervised.name)

    def _fault(self, supervised: SupervisedProcess, process: LaunchedProcess) -> str | None:
        """The fault for which a process must be ended, if it has one."""
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
            and not self._is_spared(supervised)
        ):
            return (
                f"has failed {pulse.failed_steps} steps in a row, and given no result for "
                f"{pulse.failing_s:.0f} s, the last with {pulse.error}"
            )
        return None

    def _is_spared(self, supervised: SupervisedProcess) -> bool:
        """True if it was ended for its failures too short a time ago. If not, it is about to be."""
        now = asyncio.get_running_loop().time()
        before = self._ended_for_failing.setdefault(supervised, deque())
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
