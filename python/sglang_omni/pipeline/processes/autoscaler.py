"""Adds and removes replicas of a process with its load."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from sglang_omni.config.schema import AutoscalingConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.scaling import AdmissionPolicy, ScalingPolicy
from sglang_omni.pipeline.processes.supervisor import SupervisedProcess, Supervisor
from sglang_omni.pipeline.specs import ProcessSpec

logger = logging.getLogger(__name__)

# Between two looks at the load.
_POLL_S = 0.1
# Between two tries to start a replica.
_RETRY_S = 5.0


class Autoscaler:
    """Keeps as many replicas of one process as its policy says.

    An added replica takes requests once its stages are up. A retired one gets no more of them, and leaves
    when its last request is answered; until then it may be recalled.

    While further replicas may come, those that are up get no more requests than ``AdmissionPolicy`` allows.

    Args:
        config: How many replicas there may be, and when.
        replicas: The ranks of every replica that there may be, by its number.
        terminals: Terminal stages that the process contributes to.
        coordinator: Knows the load, and gives the replicas requests.
        supervisor: Has the replicas, and adds, retires, recalls and removes them.
    """

    def __init__(
        self,
        config: AutoscalingConfig,
        replicas: Sequence[Sequence[ProcessSpec]],
        terminals: frozenset[str],
        coordinator: Coordinator,
        supervisor: Supervisor,
    ) -> None:
        self._replicas = replicas
        self._terminals = terminals
        self._stage = replicas[0][0].stages[0].stage_name
        self._name = ", ".join(repr(stage.stage_name) for stage in replicas[0][0].stages)
        self._instances = [name for ranks in replicas for name in ranks[0].instances]
        self._config = config
        self._policy = ScalingPolicy(config)
        self._admission: AdmissionPolicy | None = None
        # By instance, the most requests that it has been seen to run at once.
        self._peaks: dict[str, float] = {}
        self._coordinator = coordinator
        self._supervisor = supervisor
        self._group = tuple(stage.stage_name for stage in replicas[0][0].stages)

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._limit()
            await asyncio.sleep(_POLL_S)
            ongoing = self._coordinator.ongoing_requests(self._instances)
            ongoing += self._coordinator.admission.waiting(self._stage)
            before = self._policy.replicas
            wanted = self._policy.observe(ongoing, loop.time())
            if wanted != before:
                logger.info("%s: %d requests, so %d replicas after %d", self._name, ongoing, wanted, before)
            try:
                self._scale_to(wanted)
            except OSError:
                logger.exception("%s: another replica cannot be started now", self._name)
                self._coordinator.admission.limit(self._stage, None, self._terminals)
                await asyncio.sleep(_RETRY_S)
            await self._remove_drained()

    def _limit(self) -> None:
        """Hold requests back for replicas to come, if any may come."""
        replicas = self._supervisor.replicas(self._group).values()
        up = [replica for replica in replicas if self._is_up(replica) and not replica.is_leaving]
        given_up = sum(replica.is_given_up for replica in replicas)
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
            # One full stage is enough: the others pass on to it, or get from it.
            are_full=all(not full.isdisjoint(replica.instances) for replica in up),
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

    def _scale_to(self, wanted: int) -> None:
        """Recall, add or retire as many replicas as that takes."""
        replicas = self._supervisor.replicas(self._group)
        staying = [n for n, each in replicas.items() if not (each.is_leaving or each.is_given_up)]
        for number, ranks in enumerate(self._replicas):
            if len(staying) >= wanted:
                break
            if number in staying:
                continue
            replica = replicas.get(number)
            if replica is None:
                self._supervisor.add(ranks)
            elif self._is_up(replica):
                self._supervisor.recall(replica)
            else:
                continue  # It died while it was to leave, or too often.
            staying.append(number)
        replicas = self._supervisor.replicas(self._group)
        # Those without work first: they are on their way up, or down.
        staying.sort(key=lambda number: (self._is_up(replicas[number]), -number))
        for number in staying[: max(len(staying) - wanted, 0)]:
            self._supervisor.retire(replicas[number])

    def _is_up(self, replica: SupervisedProcess) -> bool:
        return self._coordinator.replicas.are_up(replica.instances)

    async def _remove_drained(self) -> None:
        for replica in self._supervisor.replicas(self._group).values():
            if replica.is_leaving and self._coordinator.is_drained(replica.instances):
                # No limit is set during the wait.
                self._coordinator.admission.limit(self._stage, None, self._terminals)
                await self._supervisor.remove(replica)
