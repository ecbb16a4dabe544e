"""Hosts that join over the loopback device: replicas on several of them, and all ranks of a stage on one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from relay_peers import require
from waiting import PATIENCE, until

from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.hosts.agent import HostAgent
from sglang_omni.pipeline.processes.hosts.launcher import HostsLauncher
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.proto import OmniRequest

KEY = RunKeys.generate()


class Hosts:
    """The hosts of a run."""

    def __init__(self, coordinator: str) -> None:
        self._coordinator = coordinator
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str) -> None:
        self._running[name] = asyncio.create_task(HostAgent(self._coordinator, name, KEY).run())

    async def stop(self, name: str) -> None:
        self._running[name].cancel()
        await asyncio.wait([self._running[name]])


@asynccontextmanager
async def running(
    folder: Path, hosts: Sequence[str], *stages: StageConfig
) -> AsyncIterator[tuple[MultiProcessPipelineRunner, Hosts]]:
    """A pipeline in which no process may die, and its hosts, which are tasks of this process."""
    endpoints = EndpointsConfig(base_path=str(folder / "run"))
    config = PipelineConfig(model_path="m", stages=list(stages), endpoints=endpoints)
    launcher = HostsLauncher("127.0.0.1", 0, KEY)
    runner = MultiProcessPipelineRunner(config, launcher=launcher, max_restarts=0)
    start = asyncio.create_task(runner.start(PATIENCE))
    await until(lambda: launcher.is_listening)
    joined = Hosts(launcher.endpoint)
    for name in hosts:
        joined.start(name)
    try:
        await start
        yield runner, joined
    finally:
        await runner.stop()
        for name in hosts:
            await joined.stop(name)


async def test_a_lost_host_costs_the_requests_of_its_own_replica_and_no_restart(
    tmp_path: Path,
) -> None:
    def stage(name: str, **fields: Any) -> StageConfig:
        given = {"name": name, "folder": str(tmp_path)}
        return StageConfig(
            name=name, factory="process_factories.trace", factory_args=given, process=name, **fields
        )

    require("nixl")
    front = stage("front", next="back")
    back = stage("back", terminal=True, num_replicas=2, node=["b", "c"])
    async with running(tmp_path, ["b", "c"], front, back) as (runner, hosts):
        coordinator = runner.coordinator
        assert runner.process_ids.keys() == {"front", "back@r0", "back@r1"}
        held = [
            asyncio.create_task(coordinator.submit(f"held{number}", OmniRequest({"hold": "back"})))
            for number in range(2)
        ]
        await until(lambda: coordinator.stage_load().get("back@r0") == 1)
        await until(lambda: coordinator.stage_load().get("back@r1") == 1)
        await hosts.stop("c")
        done, (other,) = await asyncio.wait(held, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(RuntimeError, match="process 'back@r1' was lost: host 'c' has left"):
            await done.pop()
        (tmp_path / "back.go").touch()
        async with asyncio.timeout(PATIENCE):
            later = await coordinator.submit("later", OmniRequest({}))
            pid = runner.process_ids["back@r0"]
            assert (await other)["seen"]["back"] == later["seen"]["back"] == pid
            hosts.start("c")
            await until(lambda: not coordinator.health()["down_stages"])
            both = [coordinator.submit(f"both{number}", OmniRequest({})) for number in range(2)]
            served = {answer["seen"]["back"] for answer in await asyncio.gather(*both)}
            assert served == {pid, runner.process_ids["back@r1"]}


async def test_the_ranks_of_a_stage_are_together_on_its_node(tmp_path: Path) -> None:
    split = StageConfig(
        name="split",
        factory="process_factories.broken_rank",
        process="split",
        tp_size=2,
        node="b",
        terminal=True,
    )
    # The first rank waits for the second, which cannot start.
    with pytest.raises(
        RuntimeError, match=r"Host 'b': Process 'split_tp1' exited(.|\n)*no weights for this rank"
    ):
        async with running(tmp_path, ["b"], split):
            pass
