"""Which replicas are added, called back and taken away, where some have died."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from sglang_omni.config import AutoscalingConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.coordinator.admission import Admission
from sglang_omni.pipeline.coordinator.replicas import ReplicaTable
from sglang_omni.pipeline.processes.autoscaler import Autoscaler
from sglang_omni.pipeline.processes.supervisor import WorkerSlot
from sglang_omni.pipeline.specs import WorkerSpec


class Pipeline:
    """One stage with up to three replicas, as the scaler meets it; without processes."""

    def __init__(self) -> None:
        self.ongoing = 0
        self.stats: dict[str, dict[str, float]] = {}
        self.replicas = ReplicaTable()
        self.admission = Admission(self.replicas)
        self.workers: dict[int, WorkerSlot] = {}
        self.scaler = Autoscaler(
            AutoscalingConfig(
                max_replicas=3, target_ongoing_requests=1, upscale_delay_s=0, downscale_delay_s=0
            ),
            [(cast(WorkerSpec, spec_of(number)),) for number in range(3)],
            frozenset({"speak"}),
            cast(Coordinator, self),
            self.workers,
            self.add,
            self.remove,
        )
        self.workers[0] = self.add((cast(WorkerSpec, spec_of(0)),))

    def add(self, ranks: Any) -> WorkerSlot:
        names = ranks[0].stage_names
        self.replicas.add(names[0], None)
        worker = SimpleNamespace(stage_names=names, is_leaving=False, is_given_up=False)
        return cast(WorkerSlot, worker)

    async def remove(self, worker: WorkerSlot) -> None:
        self.replicas.remove(worker.stage_names[0])

    def ongoing_requests(self, instances: Any) -> int:
        return self.ongoing

    def stage_stats(self) -> dict[str, dict[str, float]]:
        return self.stats

    def has(self, instance: str, *, running: int, waiting: int) -> None:
        self.stats[instance] = {"num_running_reqs": running, "num_queue_reqs": waiting}

    async def until_limit(self, limit: int | None) -> None:
        async with asyncio.timeout(10):
            while self.limit() != limit:
                await asyncio.sleep(0.01)

    def limit(self) -> int | None:
        limit = self.admission._limits.get(self.replicas.set_of("speak"))
        return None if limit is None else limit.requests

    def is_drained(self, instances: Any) -> bool:
        return not self.replicas.have_requests(instances)

    def give_up(self, number: int) -> None:
        self.replicas.mark_down(self.workers[number].stage_names, "it has died too often")
        self.workers[number].is_given_up = True

    async def until_staying(self, *numbers: int) -> None:
        async with asyncio.timeout(10):
            while {n for n, worker in self.workers.items() if not worker.is_leaving} != {*numbers}:
                await asyncio.sleep(0.01)


def spec_of(number: int) -> Any:
    stages = [SimpleNamespace(stage_name="speak")]
    return SimpleNamespace(stages=stages, stage_names=[f"speak@r{number}"])


async def test_a_replica_that_is_given_up_is_no_replica() -> None:
    pipeline = Pipeline()
    run = asyncio.create_task(pipeline.scaler.run())
    try:
        pipeline.ongoing = 2
        await pipeline.until_staying(0, 1)
        held = [pipeline.replicas.assign() for _ in range(2)]
        assert held == [{"speak": 0}, {"speak": 1}]
        pipeline.ongoing = 1
        await pipeline.until_staying(0)
        # One has still a request to answer and is to leave, as the one that was to stay is lost for good.
        pipeline.give_up(0)
        await pipeline.until_staying(0, 1)
        assert pipeline.replicas.assign() == {"speak": 1}
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
        pipeline.replicas.assign()
        pipeline.replicas.assign()
        await pipeline.until_limit(4)
        pipeline.has("speak@r0", running=1, waiting=1)
        pipeline.replicas.assign()
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
        pipeline.replicas.assign()
    run = asyncio.create_task(pipeline.scaler.run())
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        await pipeline.until_limit(3)
        waits = asyncio.create_task(pipeline.admission.wait_for_room(frozenset(), never))
        await pipeline.until_staying(0, 1)
        await waits
        assert pipeline.replicas.assign() == {"speak": 1}
    finally:
        run.cancel()


async def test_where_no_process_can_be_started_nobody_waits_for_one() -> None:
    pipeline = Pipeline()
    pipeline.has("speak@r0", running=1, waiting=2)

    def fails(ranks: Any) -> WorkerSlot:
        raise OSError("no more processes")

    pipeline.scaler._add = fails
    pipeline.ongoing = 2
    pipeline.admission.limit("speak", 1, frozenset())
    run = asyncio.create_task(pipeline.scaler.run())
    try:
        await pipeline.until_limit(None)
    finally:
        run.cancel()
