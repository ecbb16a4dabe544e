"""What processes ask of a Ray cluster, and what they make of what it gives them; no cluster is needed."""

from __future__ import annotations

import socket
import sys
from itertools import pairwise

import pytest

from sglang_omni import launch_server
from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.config.plan.pipeline import plan_pipeline, with_placeholder_nodes
from sglang_omni.pipeline.processes.plan import plan_run
from sglang_omni.pipeline.processes.ray.actor import on_first_gpu
from sglang_omni.pipeline.processes.ray.capacity import Bundle, Demand, demand_of, most_cpus
from sglang_omni.pipeline.processes.ray.launcher import RayLauncher
from sglang_omni.pipeline.specs import ProcessSpec


def stage(name: str, *, cpus: float | None = None, fraction: float | None = None, **fields) -> StageConfig:
    resources = {"num_cpus": cpus, "total_gpu_memory_fraction": fraction}
    fields = {"process": name, "runtime": {"resources": resources}, **fields}
    return StageConfig(name=name, factory="m.f", **fields)


def chain(*stages: StageConfig, **fields) -> PipelineConfig:
    for one, following in pairwise(stages):
        one.next = following.name
    stages[-1].terminal = True
    return PipelineConfig(model_path="m", stages=list(stages), **fields)


def planned(config: PipelineConfig) -> dict[str, ProcessSpec]:
    """Its processes as the actors plan them."""
    plan = plan_run(with_placeholder_nodes(plan_pipeline(config)), host_address="127.0.0.1")
    with plan.runtime_dir:
        return {spec.process_name: spec for spec in plan.process_specs()}


def test_processes_that_name_no_node_have_one_each() -> None:
    config = chain(
        stage("a", process="ab"),
        stage("b", process="ab"),
        stage("c", node="box"),
        stage("d", num_replicas=2),
        stage("e", gpu=[0, 1], tp_size=2),
    )
    nodes = {name: spec.node for name, spec in planned(config).items()}
    assert nodes == {
        "ab": "process ab",
        "c": "box",
        "d@r0": "process d@r0",
        "d@r1": "process d@r1",
        "e_tp0": "process e",
        "e_tp1": "process e",
    }
    assert config.stages[0].node is None


def test_a_process_asks_for_what_its_stages_say() -> None:
    config = chain(
        stage("silent"),
        stage("one", process="both", cpus=0.5),
        stage("other", process="both", cpus=2),
        stage("none", cpus=0),
        stage("half", gpu=0, fraction=0.5),
        stage("rest", gpu=1),
        stage("split", gpu=[2, 3], tp_size=2, fraction=0.4, cpus=3),
    )
    assert {name: demand_of(spec) for name, spec in planned(config).items()} == {
        "silent": Demand(1, 0),
        "both": Demand(2.5, 0),
        "none": Demand(0, 0),
        "half": Demand(1, 0.5),
        "rest": Demand(1, 1),
        # The ranks are on one node, where Ray could put two halves on one GPU.
        "split_tp0": Demand(3, 1),
        "split_tp1": Demand(3, 1),
    }
    assert most_cpus(config) >= 1 + 2.5 + 0 + 1 + 1 + 6


def test_a_bundle_asks_for_the_sum() -> None:
    together = Bundle("box", {"a": Demand(1, 0.5), "b": Demand(2, 0.7)})
    assert together.resources() == {"CPU": 3, "GPU": 2, "box": pytest.approx(0.001)}
    assert Bundle("process a", {"a": Demand(0, 0.25)}).resources() == {
        "CPU": pytest.approx(0.001),
        "GPU": 0.25,
    }


def test_a_stage_is_on_the_gpu_that_its_process_sees() -> None:
    config = chain(
        stage("a", gpu=3, fraction=0.4, stream_to=["b"], node="box"),
        stage("b", gpu=3, fraction=0.4, node="box"),
        stage("c"),
        relay_backend="nixl",
    )
    specs = planned(config)
    (launch,) = specs["a"].stages
    assert (launch.device_index, launch.relay_configs["nixl"]["device"]) == (0, "cuda:0")
    there = on_first_gpu(launch, 1234)
    assert (there.device_index, there.relay_configs["nixl"]["device"]) == (0, "cuda:0")
    assert there.nccl_port == 1234
    # The other's share of a GPU may be of another one, where no handle of a tensor is worth anything.
    assert not there.same_gpu_targets
    (on_cpu,) = specs["c"].stages
    assert on_first_gpu(on_cpu, 1234).relay_configs == on_cpu.relay_configs


def test_an_address_of_ray_client_is_refused() -> None:
    with pytest.raises(ValueError, match="start the server on a node of the cluster"):
        RayLauncher("ray://head:10001")


@pytest.mark.parametrize("by_environment", [False, True])
def test_an_address_where_nobody_listens_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    if by_environment:
        monkeypatch.setenv("RAY_ADDRESS", address)
    launcher = RayLauncher(None if by_environment else address)
    with pytest.raises(ConnectionError, match=f"no Ray cluster at {address}: .*refused.*ray start --head"):
        launcher.place(plan_pipeline(chain(stage("a"))))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--ray-address auto", "needs --launcher ray"),
        ("--launcher ray --dp-size 2", "num_replicas"),
        ("--launcher ray --join-port 0", "no host joins"),
    ],
)
def test_flags_that_do_not_fit_together(flags: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch_server.main(flags.split())
    assert says in capsys.readouterr().err


def test_without_ray_the_command_that_installs_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "sglang_omni.pipeline.processes.ray.launcher")
    assert launch_server.main(["--launcher", "ray", "--port", "0"]) == 1
    assert "pip install 'sgl-omni[ray]'" in capsys.readouterr().err
