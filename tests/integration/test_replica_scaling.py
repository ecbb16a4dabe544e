"""The number of replicas follows the load, and no request notices."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from replica_factories import stage_that_sleeps
from waiting import PATIENCE, until

from sglang_omni.config import AutoscalingConfig, EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner


def pipeline(folder: Path, autoscaling: AutoscalingConfig) -> PipelineConfig:
    return PipelineConfig(
        model_path="m",
        stages=[
            stage_that_sleeps("first", 0.0, next="slow"),
            stage_that_sleeps("slow", 0.05, terminal=True, autoscaling=autoscaling),
        ],
        endpoints=EndpointsConfig(base_path=str(folder / "run")),
    )


class Load:
    """Callers that each ask again as soon as they are answered."""

    def __init__(self, runner: MultiProcessPipelineRunner) -> None:
        self.pids: list[int] = []
        self._coordinator = runner.coordinator
        self._ids = itertools.count()
        self._callers: list[asyncio.Task[None]] = []
        self._ends = asyncio.Event()

    def set(self, callers: int) -> None:
        self._callers += [asyncio.create_task(self._ask()) for _ in range(callers - len(self._callers))]

    async def finish(self) -> None:
        """Returns when every request has been answered. Raises what one of them failed with."""
        self._ends.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self._callers)
        self._callers, self._ends = [], asyncio.Event()

    async def _ask(self) -> None:
        ends = self._ends
        while not ends.is_set():
            result = await self._coordinator.submit(f"r{next(self._ids)}", {})
            self.pids.append(result["pid"])


def slow(runner: MultiProcessPipelineRunner) -> set[str]:
    """The replicas that take requests."""
    down = runner.coordinator.health()["down_stages"]
    return {name for name in runner.coordinator.health()["stages"] if "slow" in name and name not in down}


async def test_replicas_come_with_the_load_and_go_with_it(tmp_path: Path) -> None:
    autoscaling = AutoscalingConfig(
        max_replicas=3, target_ongoing_requests=2, upscale_delay_s=0.2, downscale_delay_s=0.5
    )
    runner = MultiProcessPipelineRunner(pipeline(tmp_path, autoscaling))
    await runner.start(timeout=PATIENCE)
    try:
        assert list(runner.process_ids) == ["first", "slow@r0"]
        load = Load(runner)
        load.set(9)
        await until(lambda: len(slow(runner)) == 3)
        pids = runner.process_ids
        assert pids.keys() == {"first", "slow@r0", "slow@r1", "slow@r2"}
        await until(lambda: set(load.pids[-30:]) == set(pids.values()) - {pids["first"]})
        await load.finish()
        # One caller goes on while replicas leave.
        load.set(1)
        await until(lambda: len(runner.process_ids) == 2)
        assert runner.process_ids == {name: pids[name] for name in ("first", "slow@r0")}
        assert slow(runner) == {"slow@r0"}
        load.set(9)
        await until(lambda: len(slow(runner)) == 3)
        await load.finish()
        # Nobody leaving was taken for somebody dying.
        assert not runner.coordinator.health()["down_stages"]
        assert runner.coordinator.get_load()["failed"] == 0
    finally:
        await runner.stop()


async def test_a_burst_is_spread_over_the_replicas_that_it_calls_for(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    autoscaling = AutoscalingConfig(max_replicas=3, upscale_delay_s=0.2)
    config = pipeline(tmp_path, autoscaling)
    slow_stage = config.stage("slow")
    slow_stage.factory, slow_stage.factory_args = "replica_factories.gated", {"path": str(gate)}
    runner = MultiProcessPipelineRunner(config)
    await runner.start(timeout=PATIENCE)
    coordinator = runner.coordinator
    try:
        # What is slow once is not to look like a stage that has room.
        gate.touch()
        await coordinator.submit("first", {})
        gate.unlink()
        burst = [asyncio.create_task(coordinator.submit(f"r{number}", {})) for number in range(60)]
        # The one replica has its share, and the others wait, but count as load.
        await until(lambda: coordinator.stage_load()["slow@r0"] > 1)
        assert coordinator.get_load()["pending"] > 20
        await until(lambda: len(slow(runner)) == 3)
        await until(lambda: coordinator.get_load()["pending"] == 0)
        pids = runner.process_ids
        gate.touch()
        async with asyncio.timeout(PATIENCE):
            answered = Counter([(await request)["pid"] for request in burst])
        assert answered == {pids[f"slow@r{number}"]: 20 for number in range(3)}
    finally:
        await runner.stop()


async def test_a_replica_that_dies_while_others_come_and_go_is_replaced(tmp_path: Path) -> None:
    autoscaling = AutoscalingConfig(
        min_replicas=2, max_replicas=3, target_ongoing_requests=1, upscale_delay_s=0.0, downscale_delay_s=600
    )
    runner = MultiProcessPipelineRunner(pipeline(tmp_path, autoscaling))
    await runner.start(timeout=PATIENCE)
    try:
        assert slow(runner) == {"slow@r0", "slow@r1"}
        load = Load(runner)
        load.set(6)
        await until(lambda: len(slow(runner)) == 3)
        await load.finish()
        before = runner.process_ids
        os.kill(before["slow@r2"], signal.SIGKILL)
        await until(lambda: len(slow(runner)) == 2)
        load.set(2)
        await until(lambda: len(slow(runner)) == 3)
        await until(lambda: runner.process_ids["slow@r2"] in load.pids)
        await load.finish()
    finally:
        await runner.stop()


async def test_a_replica_leaves_when_its_requests_are_answered_and_may_be_called_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sglang_omni.pipeline.processes.autoscaler")
    autoscaling = AutoscalingConfig(
        max_replicas=2, target_ongoing_requests=3, upscale_delay_s=0.0, downscale_delay_s=0.0
    )
    holds = StageConfig(
        name="slow",
        factory="process_factories.trace",
        factory_args={"name": "slow", "folder": str(tmp_path)},
        process="slow",
        terminal=True,
        autoscaling=autoscaling,
    )
    base_path = str(tmp_path / "run")
    config = PipelineConfig(model_path="m", stages=[holds], endpoints=EndpointsConfig(base_path=base_path))
    runner = MultiProcessPipelineRunner(config)
    await runner.start(timeout=PATIENCE)
    coordinator = runner.coordinator

    def hold(name: str) -> asyncio.Task[Any]:
        return asyncio.create_task(coordinator.submit(name, {"hold": "slow"}))

    try:
        first = [hold(f"first{number}") for number in range(4)]
        await until(lambda: len(slow(runner)) == 2)
        added = hold("added")
        await until(lambda: coordinator.stage_load()["slow@r1"] == 1)
        pids = runner.process_ids
        for number in range(4):
            assert await coordinator.abort(f"first{number}")
        await until(lambda: "so 1 replicas after 2" in caplog.text)
        # It still has one, and gets no more until the load calls for it again.
        others = [hold(f"other{number}") for number in range(2)]
        await until(lambda: coordinator.stage_load() == {"slow@r0": 2, "slow@r1": 1})
        others.append(hold("other2"))
        await until(lambda: coordinator.stage_load() == {"slow@r0": 3, "slow@r1": 1})
        await until(lambda: caplog.text.count("so 2 replicas after 1") == 2)
        back = hold("back")
        await until(lambda: coordinator.stage_load() == {"slow@r0": 3, "slow@r1": 2})
        assert runner.process_ids == pids
        Path(tmp_path, "slow.go").touch()
        async with asyncio.timeout(PATIENCE):
            seen = [(await task)["seen"]["slow"] for task in (*others, added, back)]
        assert seen == [pids["slow@r0"]] * 3 + [pids["slow@r1"]] * 2
        assert all(task.cancelled() for task in first)
        await until(lambda: runner.process_ids == {"slow@r0": pids["slow@r0"]})
    finally:
        await runner.stop()
