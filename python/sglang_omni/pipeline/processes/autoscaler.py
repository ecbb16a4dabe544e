"""Adds replicas of a process and takes them away, as its load calls for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from sglang_omni.config.schema import AutoscalingConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.scaling import AdmissionPolicy, ScalingPolicy
from sglang_omni.pipeline.processes.supervisor import WorkerSlot
from sglang_omni.pipeline.specs import WorkerSpec

logger = logging.getLogger(__name__)

# How often the load is looked at.
_LOOK_S = 0.1
# Until a replica that could not be started is tried again.
_RETRY_S = 5.0


class Autoscaler:
    """Keeps as many replicas of one process as its policy says.

    A replica that is added takes requests once its stages are up. One that is taken away gets no more of
    them, and leaves when the last that it has is answered; until then it may be called back.

    While others may come, those that are up get no more requests than ``AdmissionPolicy`` allows.

    Args:
        config: How many there may be, and when.
        replicas: The ranks of every replica there may be, by its number.
        terminals: The terminal stages that the process works for.
        coordinator: Knows the load, and gives the replicas requests.
        workers: Those that run, by their numbers. What is added and taken away shows in it.
        add: Starts a replica, and has the coordinator know it when it is up. Raises OSError where it cannot.
        remove: Has a replica leave that no request needs, and returns when its processes have ended.
    """

    def __init__(
        self,
        config: AutoscalingConfig,
        replicas: Sequence[Sequence[WorkerSpec]],
        terminals: frozenset[str],
        coordinator: Coordinator,
        workers: dict[int, WorkerSlot],
        add: Callable[[Sequence[WorkerSpec]], WorkerSlot],
        remove: Callable[[WorkerSlot], Awaitable[None]],
    ) -> None:
        self._replicas = replicas
        self._terminals = terminals
        self._stage = replicas[0][0].stages[0].stage_name
        self._name = ", ".join(repr(stage.stage_name) for stage in replicas[0][0].stages)
        self._instances = [name for ranks in replicas for name in ranks[0].stage_names]
        self._config = config
        self._policy = ScalingPolicy(config)
        self._admission: AdmissionPolicy | None = None
        # By instance, the most requests that it has been seen to run at once.
        self._peaks: dict[str, float] = {}
        self._coordinator = coordinator
        self._workers = workers
        self._add = add
        self._remove = remove

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._limit()
            await asyncio.sleep(_LOOK_S)
            ongoing = self._coordinator.ongoing_requests(self._instances)
            ongoing += self._coordinator.admission.waiting(self._stage)
            before = self._policy.replicas
            wanted = self._policy.observe(ongoing, loop.time())
            if wanted != before:
                logger.info("%s: %d requests, so %d replicas after %d", self._name, ongoing, wanted, before)
            try:
                self._approach(wanted)
            except OSError:
                logger.exception("%s: another replica cannot be started now", self._name)
                self._coordinator.admission.limit(self._stage, None, self._terminals)
                await asyncio.sleep(_RETRY_S)
            await self._remove_drained()

    def _limit(self) -> None:
        """Keep requests for replicas to come, where there may be any."""
        up = [worker for worker in self._workers.values() if self._is_up(worker) and not worker.is_leaving]
        given_up = sum(worker.is_given_up for worker in self._workers.values())
        if not 0 < len(up) < len(self._replicas) - given_up:
            self._admission = None
            self._coordinator.admission.limit(self._stage, None, self._terminals)
            return
        if self._admission is None:
            self._admission = AdmissionPolicy(self._config.target_ongoing_requests)
        full = self._full_instances()
        most = self._admission.observe(
            len(up),
            self._coordinator.replicas.set_of(self._stage).requests(),
            # One stage that can begin with no more is enough: the others pass on to it, or get from it.
            are_full=all(not full.isdisjoint(worker.stage_names) for worker in up),
        )
        self._coordinator.admission.limit(self._stage, most, self._terminals)

    def _full_instances(self) -> set[str]:
        """Those in which more requests wait than they have been seen to run at once."""
        full = set()
        for name, numbers in self._coordinator.stage_stats().items():
            peak = self._peaks[name] = max(self._peaks.get(name, 0), numbers.get("num_running_reqs", 0))
            if numbers.get("num_queue_reqs", 0) > peak:
                full.add(name)
        return full

    def _approach(self, wanted: int) -> None:
        """Call back, add or retire as many as that takes."""
        staying = [n for n, worker in self._workers.items() if not (worker.is_leaving or worker.is_given_up)]
        for number, ranks in enumerate(self._replicas):
            if len(staying) >= wanted:
                break
            if number in staying:
                continue
            worker = self._workers.get(number)
            if worker is None:
                self._workers[number] = self._add(ranks)
            elif self._is_up(worker):
                worker.is_leaving = False
                self._coordinator.replicas.readmit(worker.stage_names)
            else:
                continue  # It died while it was to leave, or too often.
            staying.append(number)
        # Those without work first: they are on their way up, or down.
        staying.sort(key=lambda number: (self._is_up(self._workers[number]), -number))
        for number in staying[: max(len(staying) - wanted, 0)]:
            worker = self._workers[number]
            worker.is_leaving = True
            self._coordinator.replicas.retire(worker.stage_names)

    def _is_up(self, worker: WorkerSlot) -> bool:
        return self._coordinator.replicas.are_up(worker.stage_names)

    async def _remove_drained(self) -> None:
        for number, worker in list(self._workers.items()):
            if worker.is_leaving and self._coordinator.is_drained(worker.stage_names):
                # While this waits, the load is not looked at.
                self._coordinator.admission.limit(self._stage, None, self._terminals)
                await self._remove(worker)
                del self._workers[number]
