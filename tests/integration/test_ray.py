"""A pipeline's processes as actors of a Ray cluster of three nodes: placed, restarted, moved, and gone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from processes import is_alive, is_running
from program_lines import Lines
from ray._private import ray_constants
from ray.cluster_utils import Cluster
from ray.util import list_named_actors, placement_group_table
from waiting import PATIENCE, until

from sglang_omni.config import AutoscalingConfig, EndpointsConfig, PipelineConfig, StageConfig, WatchdogConfig
from sglang_omni.config.schema.load import save_config
from sglang_omni.pipeline.processes.ray.launcher import RayLauncher
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

pytestmark = pytest.mark.long

# Enough for what goes through no relay: Ray's own objects are of no use to a pipeline.
STORE = 80 * 2**20


@dataclass
class Nodes:
    """A cluster on this machine. ``left`` and ``right`` have a resource of that name each, and ``either``."""

    cluster: Cluster
    nodes: dict[str, Any]

    def name_of(self, node_id: str) -> str:
        return next(name for name, node in self.nodes.items() if node.node_id == node_id)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    before = set(psutil.Process().children(recursive=True))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray has read by now whether there is a token in this user's home.
        environment.setenv("RAY_AUTH_MODE", "disabled")
        environment.setenv("RAY_metrics_report_interval_ms", "500")
        # Else whoever connects to 127.0.0.1 is sent to the machine's address.
        environment.setenv(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "0")
        environment.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
        common = {
            "num_cpus": 2,
            "object_store_memory": STORE,
            "include_dashboard": False,
            # Ray's servers listen on every address of a node that has another one.
            "node_ip_address": "127.0.0.1",
        }
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                **common,
                "resources": {"head": 1},
                # A node that is gone is noticed within seconds.
                "_system_config": {
                    "health_check_initial_delay_ms": 1000,
                    "health_check_period_ms": 1000,
                    "health_check_timeout_ms": 3000,
                    "health_check_failure_threshold": 3,
                },
            },
        )
        try:
            started = {"head": cluster.head_node}
            for name in ("left", "right"):
                started[name] = cluster.add_node(**common, resources={name: 1, "either": 1})
            ray.init(address=cluster.address, logging_level="warning")
            yield Nodes(cluster, started)
        finally:
            ray.shutdown()
            cluster.shutdown()
    left_behind = set(psutil.Process().children(recursive=True)) - before
    _, alive = psutil.wait_procs(left_behind, timeout=120)
    assert not [process for process in alive if is_alive(process)]


@pytest.fixture(autouse=True)
async def nothing_is_left(nodes: Nodes) -> AsyncIterator[None]:
    """Every test leaves the cluster without actors and placement groups."""
    yield
    await until(lambda: not list_named_actors(all_namespaces=True))
    await until(lambda: not groups())


def stage(name: str, factory: str = "visit", **fields: Any) -> StageConfig:
    fields = {"process": name, "factory_args": {"name": name}, **fields}
    return StageConfig(name=name, factory=f"ray_factories.{factory}", **fields)


def pipeline(folder: Path, *stages: StageConfig) -> PipelineConfig:
    return PipelineConfig(
        model_path="m", stages=list(stages), endpoints=EndpointsConfig(base_path=str(folder / "run"))
    )


def pair(folder: Path, **fields: Any) -> PipelineConfig:
    """Two stages, each in a process of its own."""
    arguments = {name: {"name": name, "folder": str(folder)} for name in "ab"}
    return pipeline(
        folder,
        stage("a", factory_args=arguments["a"], next="b", **fields),
        stage("b", factory_args=arguments["b"], terminal=True, **fields),
    )


def spoken(folder: Path, **node_of: str) -> PipelineConfig:
    """Three stages with MBs of numbers in payloads, and a stream past the second."""
    return pipeline(
        folder,
        stage("speak", "speaker", next="double", stream_to=["listen"], node=node_of.get("speak")),
        stage("double", next="listen", node=node_of.get("double")),
        stage(
            "listen",
            "listener",
            terminal=True,
            can_accept_stream_before_payload=True,
            node=node_of.get("listen"),
        ),
    )


@asynccontextmanager
async def running(config: PipelineConfig, **options: Any) -> AsyncIterator[MultiProcessPipelineRunner]:
    runner = MultiProcessPipelineRunner(config, **options)
    await runner.start(timeout=PATIENCE)
    try:
        yield runner
    finally:
        await runner.stop()


@asynccontextmanager
async def on_ray(config: PipelineConfig, **options: Any) -> AsyncIterator[MultiProcessPipelineRunner]:
    """Runs it on the cluster, and sees to it that its processes are gone afterwards."""
    pids: list[int] = []
    async with running(config, launcher=RayLauncher(), **options) as runner:
        yield runner
        pids += runner.process_ids.values()
    await until(lambda: not any(map(is_running, pids)))


async def ask(runner: MultiProcessPipelineRunner, request_id: str, **inputs: Any) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        return await runner.coordinator.submit(request_id, inputs)


async def held(runner: MultiProcessPipelineRunner, folder: Path, name: str) -> asyncio.Task[Any]:
    """A request that the stage ``name`` works on now."""
    request = asyncio.create_task(ask(runner, f"held by {name}", hold=name))
    await until(lambda: Path(folder, f"{name}.held").exists())
    return request


async def test_stages_on_three_nodes_answer_as_on_this_host(nodes: Nodes, tmp_path: Path) -> None:
    where = {"speak": "head", "double": "left", "listen": "right"}
    async with on_ray(spoken(tmp_path, **where)) as runner:
        answer = await ask(runner, "r", count=400_000)
        actors = actors_of_processes()
    assert {name: nodes.name_of(seen["node"]) for name, seen in answer["seen"].items()} == where
    assert actors == set(where)
    async with running(spoken(tmp_path)) as runner:
        expected = await ask(runner, "r", count=400_000)
    for part in ("payload", "stream"):
        assert answer[part] == expected[part]


async def test_a_killed_actors_requests_fail_and_ray_starts_it_again(nodes: Nodes, tmp_path: Path) -> None:
    async with on_ray(pair(tmp_path)) as runner:
        before = (await ask(runner, "before"))["seen"]
        request = await held(runner, tmp_path, "b")
        os.kill(before["b"]["pid"], signal.SIGKILL)
        text = rf"stage 'b': process 'b' was lost by Ray: its process is gone \(pid {before['b']['pid']} on "
        with pytest.raises(RuntimeError, match=text) as caught:
            await request
        log, reason = re.fullmatch(r".* on 127\.0\.0\.1, log (/\S+)\): (.+)", str(caught.value)).groups()
        assert re.fullmatch(rf"worker-.*-{before['b']['pid']}\.err", Path(log).name)
        assert Path(log).is_file()
        # Why, without the number of an actor that nobody knows.
        assert "The actor" not in reason
        after = (await ask(runner, "after"))["seen"]
    assert after["b"]["actor"] == before["b"]["actor"]
    assert after["b"]["pid"] != before["b"]["pid"]
    assert after["a"] == before["a"]


async def test_no_room_says_who_asked_for_what(nodes: Nodes, tmp_path: Path) -> None:
    config = pair(tmp_path)
    config.stages[1].runtime.resources.num_cpus = 64
    config.stages[1].node = "nowhere"
    launcher = RayLauncher(placement_timeout=1.0)
    with pytest.raises(RuntimeError) as caught:
        await MultiProcessPipelineRunner(config, launcher=launcher).start()
    text = str(caught.value)
    assert "process 'b' (CPU 64 on a node with the resource 'nowhere') fit on no node" in text
    assert "CPU 2, either 1, left 1" in text
    assert "'a'" not in text


async def test_what_a_factory_raises_reaches_the_caller(nodes: Nodes, tmp_path: Path) -> None:
    broken = pipeline(tmp_path, stage("a", "broken", factory_args={}, terminal=True))
    with pytest.raises(
        RuntimeError, match=r"Process 'a' exited with status 1: .*no weights in /nowhere"
    ) as caught:
        await MultiProcessPipelineRunner(broken, launcher=RayLauncher()).start(timeout=PATIENCE)
    assert 'ray_factories.py", line' in str(caught.value)


async def test_logs_and_metrics_are_where_ray_has_them(nodes: Nodes, tmp_path: Path) -> None:
    where = {"speak": "left", "double": "left", "listen": "right"}
    async with on_ray(spoken(tmp_path, **where)) as runner:
        seen = (await ask(runner, "r", count=200_000, log="a line to be found"))["seen"]
        logs = Path(nodes.cluster.head_node.get_logs_dir_path())
        (log,) = logs.glob(f"worker-*-{seen['double']['pid']}.err")
        assert "WARNING [double] ray_factories: stage double says a line to be found" in log.read_text()

        def exported(stage: str) -> bool:
            tags = f'process="{stage}",stage="{stage}"'
            return any(
                line.startswith("ray_sglang_omni_stage_relay_held_bytes{") and tags in line
                for line in metrics(nodes.nodes[where[stage]].metrics_export_port)
            )

        for stage in ("speak", "double"):
            await until(lambda stage=stage: exported(stage))


def metrics(port: int) -> list[str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.read().decode().splitlines()
    except OSError:
        return []  # its agent is on its way up


async def test_a_stopped_actor_is_started_again(nodes: Nodes, tmp_path: Path) -> None:
    config = pair(tmp_path)
    config.watchdog = WatchdogConfig(heartbeat_timeout=8.0, unhealthy_after=4.0)
    async with on_ray(config) as runner:
        before = (await ask(runner, "before"))["seen"]
        request = await held(runner, tmp_path, "b")
        os.kill(before["b"]["pid"], signal.SIGSTOP)
        await until(lambda: "b" in runner.coordinator.health()["hung_stages"])
        with pytest.raises(RuntimeError, match="stage 'b': process 'b' has not answered for"):
            await request
        after = (await ask(runner, "after"))["seen"]
        assert (after["a"], after["b"]["pid"] != before["b"]["pid"]) == (before["a"], True)


async def test_replicas_are_actors_of_their_own(nodes: Nodes, tmp_path: Path) -> None:
    config = pair(tmp_path)
    config.stages[0].num_replicas = 2
    async with on_ray(config, max_restarts=0) as runner:
        stays = await held(runner, tmp_path, "a")
        goes = (await ask(runner, "another"))["seen"]["a"]
        os.kill(goes["pid"], signal.SIGKILL)
        # Its budget is spent: Ray is not to start it again.
        await until(lambda: len(actors_of_processes()) == 2)
        Path(tmp_path, "a.go").touch()
        stayed = (await stays)["seen"]["a"]
        assert stayed["actor"] != goes["actor"]
        after = [(await ask(runner, f"after {number}"))["seen"]["a"] for number in range(2)]
        assert after == [stayed, stayed]
        assert actors_of_processes() in ({"a@r0", "b"}, {"a@r1", "b"})


async def test_a_replica_that_is_added_asks_for_its_own_room(nodes: Nodes, tmp_path: Path) -> None:
    config = pair(tmp_path)
    config.stages[0].autoscaling = AutoscalingConfig(
        max_replicas=2, target_ongoing_requests=1, upscale_delay_s=0, downscale_delay_s=0.5
    )
    async with on_ray(config) as runner:
        assert actors_of_processes() == {"a@r0", "b"}
        (reserved,) = groups()
        requests = [asyncio.create_task(ask(runner, f"{number}", hold="a")) for number in range(3)]
        await until(lambda: actors_of_processes() == {"a@r0", "a@r1", "b"})
        assert len(groups()) == 2
        Path(tmp_path, "a.go").touch()
        await asyncio.gather(*requests)
        await until(lambda: actors_of_processes() == {"a@r0", "b"})
        await until(lambda: groups() == [reserved])
        assert (await ask(runner, "after"))["seen"].keys() == {"a", "b"}


def groups() -> list[str]:
    """The placement groups there are."""
    table = placement_group_table()
    return [name for name, group in table.items() if group["state"] != "REMOVED"]


def actors_of_processes() -> set[str]:
    return {actor["name"].rpartition(":")[2] for actor in list_named_actors(all_namespaces=True)}


async def test_ranks_are_on_one_node_and_start_again_together(nodes: Nodes, tmp_path: Path) -> None:
    arguments = {"name": "a", "folder": str(tmp_path)}
    config = pipeline(tmp_path, stage("a", "rank", factory_args=arguments, tp_size=2, terminal=True))

    def ranks() -> list[dict[str, Any]]:
        return [json.loads((tmp_path / f"rank{number}.json").read_text()) for number in range(2)]

    async with on_ray(config) as runner:
        assert (await ask(runner, "before"))["seen"]["a"]["pid"] == ranks()[0]["pid"]
        before = ranks()
        os.kill(before[1]["pid"], signal.SIGKILL)
        await until(lambda: all(new["pid"] != old["pid"] for new, old in zip(ranks(), before, strict=True)))
        assert (await ask(runner, "after"))["seen"]["a"]["pid"] == ranks()[0]["pid"]
        for lived in (before, ranks()):
            assert lived[0]["node"] == lived[1]["node"]
            assert lived[0]["port"] == lived[1]["port"] > 0
        assert [it["actor"] for it in ranks()] == [it["actor"] for it in before]


async def test_a_server_on_ray_ends_on_sigterm(nodes: Nodes, tmp_path: Path) -> None:
    """Ray's driver ends the process at once on SIGTERM, where nobody keeps it from that."""
    config = pipeline(tmp_path, stage("a", terminal=True))
    save_config(config, tmp_path / "pipeline.yaml")
    command = f"serve --launcher ray --ray-address {nodes.cluster.address} --port 0 --config"
    server = subprocess.Popen(  # noqa: ASYNC220  it takes as long as any other here
        [sys.executable, "-m", "sglang_omni.cli", *command.split(), str(tmp_path / "pipeline.yaml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    try:
        await asyncio.to_thread(Lines(server).says, "served on")
        assert actors_of_processes() == {"a"}
        server.terminate()
        assert await asyncio.to_thread(server.wait, PATIENCE) == 0
    finally:
        server.kill()
        server.wait()


async def test_processes_of_one_node_are_together_and_move_together(nodes: Nodes, tmp_path: Path) -> None:
    """The last test: it takes a node from the cluster."""
    async with on_ray(pair(tmp_path, node="either")) as runner:
        before = (await ask(runner, "before"))["seen"]
        assert before["a"]["node"] == before["b"]["node"]
        request = await held(runner, tmp_path, "b")
        name = nodes.name_of(before["a"]["node"])
        nodes.cluster.remove_node(nodes.nodes[name], allow_graceful=False)
        with pytest.raises(RuntimeError, match=r"stage '[ab]'.*lost by Ray"):
            await request
        after = (await ask(runner, "after"))["seen"]
    assert {nodes.name_of(seen["node"]) for seen in after.values()} == {"left", "right"} - {name}
    assert {name: seen["actor"] for name, seen in after.items()} == {
        name: seen["actor"] for name, seen in before.items()
    }
