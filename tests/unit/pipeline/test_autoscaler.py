"""Which replicas are added, called back and taken away, where some have died."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from sglang_omni.config import AutoscalingConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.coordinator.admission import AdmissionQueues
from sglang_omni.pipeline.coordinator.instances import ReplicaTable
from sglang_omni.pipeline.processes.autoscaler import Autoscaler
from sglang_omni.pipeline.processes.supervisor import Supervisor
from sglang_omni.pipeline.specs import ProcessSpec


class Pipeline:
    """One stage with up to three replicas, as the scaler meets it; without processes."""

    def __init__(self) -> None:
        self.ongoing = 0
        self.stats: dict[str, dict[str, float]] = {}
        self.table = ReplicaTable()
        self.admission = AdmissionQueues(self.table)
        # A supervisor asks its coordinator for the replicas too.
        self._coordinator = SimpleNamespace(
            replicas=self.table,
            admission=self.admission,
            ongoing_requests=lambda instances: self.ongoing,
            stage_stats=lambda: self.stats,
            is_drained=lambda instances: not self.table.have_requests(instances),
        )
        self.present: dict[int, Any] = {}
        self.scaler = Autoscaler(
            AutoscalingConfig(
                max_replicas=3, target_ongoing_requests=1, upscale_delay_s=0, downscale_delay_s=0
            ),
            [(cast(ProcessSpec, spec_of(number)),) for number in range(3)],
            frozenset({"speak"}),
            cast(Coordinator, self._coordinator),
            cast(Supervisor, self),
        )
        self.add([spec_of(0)])

    def replicas(self, group: tuple[str, ...]) -> dict[int, Any]:
        assert group == ("speak",)
        return dict(self.present)

    def add(self, ranks: Any) -> None:
        self.table.add(ranks[0].instances[0], None)
        self.present[ranks[0].replica] = SimpleNamespace(
            instances=ranks[0].instances, is_leaving=False, is_given_up=False
        )

    def retire(self, replica: Any) -> None:
        Supervisor.retire(cast(Supervisor, self), replica)

    def recall(self, replica: Any) -> None:
        Supervisor.recall(cast(Supervisor, self), replica)

    async def remove(self, replica: Any) -> None:
        self.table.remove(replica.instances[0])
        self.present = {number: each for number, each in self.present.items() if each is not replica}

    def has(self, instance: str, *, running: int, waiting: int) -> None:
        self.stats[instance] = {"num_running_reqs": running, "num_queue_reqs": waiting}

    async def until_limit(self, limit: int | None) -> None:
        async with asyncio.timeout(10):
            while self.limit() != limit:
                await asyncio.sleep(0.01)

    def limit(self) -> int | None:
        limit = self.admission._limits.get(self.table.set_of("speak"))
        return None if limit is None else limit.requests

    def give_up(self, number: int) -> None:
        self.table.mark_down(self.present[number].instances, "it has died too often")
        self.present[number].is_given_up = True

    async def until_staying(self, *numbers: int) -> None:
        async with asyncio.timeout(10):
            while {n for n, each in self.present.items() if not each.is_leaving} != {*numbers}:
                await asyncio.sleep(0.01)


def spec_of(number: int) -> Any:
    stages = [SimpleNamespace(stage_name="speak")]
    return SimpleNamespace(stages=stages, instances=[f"speak@r{number}"], replica=number)


async def test_a_replica_that_is_given_up_is_no_replica() -> None:
    pipeline = Pipeline()
    run = asyncio.create_task(pipeline.scaler.run())
    try:
        pipeline.ongoing = 2
        await pipeline.until_staying(0, 1)
        held = [pipeline.table.assign() for _ in range(2)]
        assert held == [{"speak": 0}, {"speak": 1}]
        pipeline.ongoing = 1
        await pipeline.until_staying(0)
        # One has still a request to answer and is to leave, as the one that was to stay is lost for good.
        pipeline.give_up(0)
        await pipeline.until_staying(0, 1)
        assert pipeline.table.assign() == {"speak": 1}
        pipeline.ongoing = 2
        await pipeline.until_staying(0, 1, 2)
    finally:
        run.cancel()


async def test_replicas_get_twice_what_they_have_until_more_waits_in_them_than_runs() -> None:
    pipeline = Pipeline()
    run = asyncio.create_task(pipeline.scaler.run())
    try:
        # At first twice the target of one.
        await pipeline.until_limit(2)
        pipeline.table.assign()
        pipeline.table.assign()
        await pipeline.until_limit(4)
        pipeline.has("speak@r0", running=1, waiting=1)
        pipeline.table.assign()
        await pipeline.until_limit(6)
        pipeline.has("speak@r0", running=1, waiting=2)
        await pipeline.until_limit(3)
        # One more replica, which nothing waits in.
        pipeline.ongoing = 2
        await pipeline.until_staying(0, 1)
        await pipeline.until_limit(6)
        pipeline.has("speak@r1", running=1, waiting=3)
        await pipeline.until_limit(3)
        # With the last there may be, requests wait for none.
        pipeline.ongoing = 3
        await pipeline.until_staying(0, 1, 2)
        await pipeline.until_limit(None)
    finally:
        run.cancel()


async def test_a_replica_that_will_not_come_is_not_waited_for() -> None:
    pipeline = Pipeline()
    run = asyncio.create_task(pipeline.scaler.run())
    try:
        pipeline.ongoing = 3
        await pipeline.until_staying(0, 1, 2)
        pipeline.give_up(1)
        pipeline.give_up(2)
        pipeline.has("speak@r0", running=1, waiting=5)
        pipeline.ongoing = 0
        await pipeline.until_limit(None)
    finally:
        run.cancel()


async def test_requests_that_wait_call_for_replicas() -> None:
    pipeline = Pipeline()
    pipeline.has("speak@r0", running=1, waiting=2)
    pipeline.ongoing = 1
    for _ in range(3):
        pipeline.table.assign()
    run = asyncio.create_task(pipeline.scaler.run())
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        await pipeline.until_limit(3)
        waits = asyncio.create_task(pipeline.admission.wait_for_room(frozenset(), never))
        await pipeline.until_staying(0, 1)
        await waits
        assert pipeline.table.assign() == {"speak": 1}
    finally:
        run.cancel()


async def test_where_no_process_can_be_started_nobody_waits_for_one() -> None:
    pipeline = Pipeline()
    pipeline.has("speak@r0", running=1, waiting=2)

    def fails(ranks: Any) -> None:
        raise OSError("no more processes")

    pipeline.add = fails  # type: ignore[method-assign]
    pipeline.ongoing = 2
    pipeline.admission.limit("speak", 1, frozenset())
    run = asyncio.create_task(pipeline.scaler.run())
    try:
        await pipeline.until_limit(None)
    finally:
        run.cancel()
