"""The transport of an edge: chosen by where its ends run, and by the config."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from edge_pipelines import FACTORY, LENDING, NEAR, NETWORKED, edges_of, legacy, pipeline, stage
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_omni.cli import main
from sglang_omni.config import (
    LOCAL_OBJECT,
    Edge,
    PipelineConfig,
    StageConfig,
    StageRuntimeConfig,
    describe_config,
    plan_pipeline,
    resolve_config,
    save_config,
    stage_instances,
    validate_config,
)
from sglang_omni.config.schema.relay_backends import relay_backend
from sglang_omni.pipeline.processes.plan import plan_stage_launch


def planned(config: PipelineConfig, **options: Any) -> dict[tuple[str, str], Edge]:
    return {(edge.source, edge.target): edge for edge in edges_of(config, **options)}


def only(config: PipelineConfig, **options: Any) -> Edge:
    (edge,) = edges_of(config, **options)
    return edge


# --- which one, and why ----------------------------------------------------------------------


def test_within_a_process_the_object_is_handed_over() -> None:
    edge = only(pipeline(stage("a", "b", process="p"), stage("b", process="p")))
    assert edge == Edge("a", "b", ("payload",), LOCAL_OBJECT, "same process", None)


def test_what_a_fan_out_shares_within_a_process_takes_the_relay() -> None:
    # Several stages may then see one object, of which only one may be the owner.
    edges = planned(
        pipeline(stage("a", "b", "c", process="p"), stage("b", process="p"), stage("c", process="p"))
    )
    for target in "bc":
        edge = edges["a", target]
        assert (edge.transport, edge.relay) == (LOCAL_OBJECT, "shm")
        assert edge.reason == "same process; shm for what several stages get"


def test_a_stream_within_a_process_needs_no_relay() -> None:
    config = pipeline(
        stage("a", "b", stream_to=["c"], process="p"), stage("b", process="p"), stage("c", process="p")
    )
    edges = planned(config)
    assert edges["a", "c"] == Edge("a", "c", ("stream",), LOCAL_OBJECT, "same process", None)


@pytest.mark.parametrize("backend", ["shm", *NETWORKED, LENDING])
def test_on_one_host_the_pipelines_relay_is_used(backend: str) -> None:
    edge = only(pipeline(stage("a", "b", stream_to=["b"]), stage("b"), relay_backend=backend))
    assert edge == Edge("a", "b", ("payload", "stream"), backend, "same host", backend)
    near = {"node": "x"}
    edge = only(pipeline(stage("a", "b", **near), stage("b", **near), relay_backend=backend))
    assert (edge.transport, edge.reason) == (backend, "both on node 'x'")


@pytest.mark.parametrize("backend", [*NETWORKED, LENDING])
def test_a_relay_that_reaches_other_hosts_is_used_between_them(backend: str) -> None:
    edge = only(pipeline(stage("a", "b"), stage("b", node="x"), relay_backend=backend))
    assert (edge.transport, edge.reason) == (backend, "from the coordinator's host to node 'x'")


@pytest.mark.parametrize("network", NETWORKED)
def test_if_it_does_not_reach_the_network_relay_is_used(network: str) -> None:
    config = pipeline(stage("a", "b", node="x"), stage("b", node="y"), network_relay_backend=network)
    edge = only(config)
    assert edge.transport == edge.relay == network
    assert edge.reason == "from node 'x' to node 'y', which shm does not reach"


def test_an_edges_own_relay_counts_for_that_edge_alone() -> None:
    config = pipeline(stage("a", "b", "c", edge_relays={"c": "mooncake"}), stage("b"), stage("c", node="x"))
    edges = planned(config)
    assert (edges["a", "b"].transport, edges["a", "b"].reason) == ("shm", "same host")
    assert (edges["a", "c"].transport, edges["a", "c"].reason) == ("mooncake", "edge_relays")
    assert only(pipeline(stage("a", "b", edge_relays={"b": "nixl"}), stage("b"))).transport == "nixl"


def test_any_stage_may_be_the_target_of_get_next() -> None:
    edges = planned(PipelineConfig(stages=[legacy(name) for name in "abc"]))
    assert edges.keys() == set(itertools.product("abc", repeat=2))
    assert edges["a", "b"].transport == "shm"
    # It may name several, and itself, which shares the process.
    assert (edges["a", "a"].transport, edges["a", "a"].relay) == (LOCAL_OBJECT, "shm")


def test_in_the_callers_process_nothing_else_counts() -> None:
    config = pipeline(stage("a", "b", edge_relays={"b": "nixl"}), stage("b", node="x"))
    assert only(config, process_of={"a": "", "b": ""}).transport == LOCAL_OBJECT


def test_ranks_share_no_process_with_other_stages() -> None:
    edge = only(pipeline(stage("a", "b", tp_size=2), stage("b", tp_size=2)))
    assert (edge.transport, edge.reason) == ("shm", "same host")


# --- replicas --------------------------------------------------------------------------------


def test_replicas_of_one_process_keep_to_themselves() -> None:
    two = {"num_replicas": 2}
    config = pipeline(stage("a", "b", process="p", **two), stage("b", "c", process="p", **two), stage("c"))
    edges = planned(config)
    assert edges.keys() == {("a@r0", "b@r0"), ("a@r1", "b@r1"), ("b@r0", "c"), ("b@r1", "c")}
    assert edges["a@r1", "b@r1"].transport == LOCAL_OBJECT


def test_replicas_of_several_processes_all_meet() -> None:
    config = pipeline(
        stage("a", "b", num_replicas=2), stage("b", autoscaling={"max_replicas": 3}, node=["x", "y", "x"])
    )
    edges = planned(config)
    assert len(edges) == 6
    assert {edge.transport for edge in edges.values()} == {"nixl"}
    assert edges["a@r1", "b@r2"].reason.startswith("from the coordinator's host to node 'x'")


def shown(config: PipelineConfig) -> list[tuple[str, str, str, str]]:
    return [
        (edge["source"], edge["target"], edge["transport"], edge["reason"])
        for edge in resolve_config(config)["edges"]
    ]


def test_replicas_that_are_alike_are_shown_as_one_edge() -> None:
    config = pipeline(stage("a", "b"), stage("b", num_replicas=3))
    assert shown(config) == [("a", "b", "shm", "same host")]
    assert "-> b (shm)" in describe_config(config)


def test_replicas_that_are_not_are_shown_one_by_one() -> None:
    config = pipeline(stage("a", "b", node="x"), stage("b", num_replicas=2, node=["x", "y"]))
    assert shown(config) == [
        ("a", "b@r0", "shm", "both on node 'x'"),
        ("a", "b@r1", "nixl", "from node 'x' to node 'y', which shm does not reach"),
    ]
    text = describe_config(config)
    assert "-> b (shm, nixl)" in text
    assert "b@r1 (cpu, node y): b@r1" in text


def test_the_ranks_of_every_replica_are_shown() -> None:
    config = pipeline(stage("a", tp_size=2, num_replicas=2, node=["x", "y"], gpu=[0, 1]))
    resolved = resolve_config(config)
    assert resolved["processes"] == [
        {"name": f"a@r{replica}_tp{rank}", "stages": [f"a@r{replica}"], "gpu": rank, "node": node}
        for replica, node in enumerate("xy")
        for rank in range(2)
    ]
    assert list(resolved["gpus"]) == ["0 of node 'x'", "1 of node 'x'", "0 of node 'y'", "1 of node 'y'"]


# --- GPUs ------------------------------------------------------------------------------------

QUARTER = {"runtime": StageRuntimeConfig(resources={"total_gpu_memory_fraction": 0.25})}


@pytest.mark.parametrize(
    ("sender", "receiver", "fields", "label"),
    [
        ({"gpu": 0}, {"gpu": 0}, {}, "shm + cuda_ipc"),
        ({"gpu": 0}, {"gpu": 0}, {"relay_backend": LENDING}, f"{LENDING} + cuda_ipc"),
        ({"gpu": 0}, {"gpu": 0}, {"relay_backend": "nccl"}, "nccl"),
        ({"gpu": 0}, {"gpu": 1}, {}, "shm"),
        ({"gpu": 0}, {}, {}, "shm"),
        ({"gpu": 0, "process": "p"}, {"gpu": 0, "process": "p"}, {}, LOCAL_OBJECT),
        ({"gpu": 0, "node": "x"}, {"gpu": 0, "node": "y"}, {}, "nixl"),
        ({"gpu": 0}, {"gpu": 0, "node": "y"}, {"relay_backend": LENDING}, LENDING),
    ],
)
def test_streams_on_one_gpu_are_lent_if_the_relay_can(
    sender: dict[str, Any], receiver: dict[str, Any], fields: dict[str, Any], label: str
) -> None:
    config = pipeline(
        stage("a", "b", stream_to=["b"], **sender, **QUARTER), stage("b", **receiver, **QUARTER), **fields
    )
    assert only(config).label == label


def test_payloads_on_one_gpu_are_lent() -> None:
    assert only(pipeline(stage("a", "b", gpu=0, **QUARTER), stage("b", gpu=0, **QUARTER))).cuda_ipc


def test_ranks_do_not_lend() -> None:
    config = pipeline(
        stage("a", "b", stream_to=["b"], tp_size=2, gpu=[0, 1], **QUARTER), stage("b", gpu=0, **QUARTER)
    )
    assert not only(config).cuda_ipc


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["edge_relays", "network_relay_backend"])
def test_a_relay_of_one_host_cannot_leave_it(field: str) -> None:
    own, shared = {"edge_relays": {"b": "shm"}}, {"network_relay_backend": "shm"}
    config = pipeline(
        stage("a", "b", **(own if field in own else {})),
        stage("b", node="x"),
        **(shared if field in shared else {}),
    )
    text = (
        f"stage 'a' sends to 'b' from the coordinator's host to node 'x', but 'shm', of {field}, does not "
        "reach other hosts; use one of "
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        plan_pipeline(config)


def test_it_is_accepted_if_no_edge_leaves_the_host() -> None:
    config = pipeline(stage("a", "b", node="x"), stage("b", node="x"), network_relay_backend="shm")
    validate_config(config)


def test_an_edge_within_a_process_takes_no_relay_of_its_own() -> None:
    config = pipeline(stage("a", "b", process="p", edge_relays={"b": "nixl"}), stage("b", process="p"))
    with pytest.raises(ValueError, match="stage 'a': edge_relays names 'b', which runs in the same process"):
        validate_config(config)


def test_edge_relays_name_targets() -> None:
    with pytest.raises(ValueError, match=r"edge_relays names 'c', to which the stage sends nothing.*'b'"):
        pipeline(stage("a", "b", edge_relays={"c": "nixl"}), stage("b", "c"), stage("c"))
    with pytest.raises(ValueError, match=r"edge_relays has unknown stages: \['d'\]"):
        pipeline(stage("a", "b", edge_relays={"d": "nixl"}), stage("b"))
    pipeline(stage("a", "b", stream_to=["c"], edge_relays={"c": "nixl"}), stage("b"), stage("c"))


def test_a_relay_of_ones_own_is_its_class() -> None:
    near = pipeline(stage("a", "b"), stage("b", node="x"), relay_backend=NEAR)
    assert only(near).transport == "nixl"
    near.network_relay_backend = NEAR
    with pytest.raises(ValueError, match="does not reach other hosts; use one of"):
        plan_pipeline(near)
    for path, problem in (
        (f"{NEAR[:-4]}Neer", "has no 'Neer'; did you mean 'Near'"),
        ("no_such_module.Relay", "relay backend: cannot import 'no_such_module.Relay': no module named"),
        (f"{FACTORY[:-4]}FACTORY", "is a str, not a class"),
    ):
        near.relay_backend = path
        with pytest.raises(ValueError, match=re.escape(problem)):
            validate_config(near)
    here = pipeline(stage("a", "b"), stage("b"), relay_backend="no_such_module.Relay")
    with pytest.raises(ValueError, match=r"relay_backend: .*'no_such_module'"):
        validate_config(here)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        *((wrong, "valid names: 'mooncake', 'nccl', 'nixl'") for wrong in ("carrier-pigeon", "zmq", "")),
        *(("nixi", "did you mean 'nixl'?"), ("moncake", "did you mean 'mooncake'?")),
        *(("SHM", "did you mean 'shm'?"), ("ncccl", "did you mean 'nccl'?")),
    ],
)
def test_an_unknown_backend_is_refused_with_the_nearest_or_all(wrong: str, hint: str) -> None:
    fields: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("relay_backend", {}, {"relay_backend": wrong}),
        ("network_relay_backend", {}, {"network_relay_backend": wrong}),
        ("stage 'a': edge_relays['b']", {"edge_relays": {"b": wrong}}, {}),
    ]
    for where, of_stage, of_pipeline in fields:
        text = f"{where}: there is no relay backend {wrong!r}; {hint}"
        with pytest.raises(ValueError, match=re.escape(text)):
            pipeline(stage("a", "b", **of_stage), stage("b"), **of_pipeline)


def test_a_replica_may_be_on_the_coordinators_host() -> None:
    config = pipeline(stage("a", "b"), stage("b", num_replicas=2, node=["x", None]))
    edges = planned(config)
    assert {target: edge.transport for (_, target), edge in edges.items()} == {"b@r0": "nixl", "b@r1": "shm"}
    nodes = {process["name"]: process["node"] for process in resolve_config(config)["processes"]}
    assert nodes == {"a": None, "b@r0": "x", "b@r1": None}


def test_what_a_launcher_places_by_itself_may_be_on_any_host() -> None:
    config = pipeline(
        stage("a", "b", "c"), stage("b", "c", process="a"), stage("c", "d", node="x"), stage("d", node="x")
    )
    resolved = resolve_config(config, on_any_host=True)
    assert {process["name"]: process["node"] for process in resolved["processes"]} == {
        "a": "any",
        "c": "x",
        "d": "x",
    }
    found = {(it["source"], it["target"]): (it["transport"], it["reason"]) for it in resolved["edges"]}
    assert found == {
        ("a", "b"): (LOCAL_OBJECT, "same process; shm for what several stages get"),
        ("a", "c"): ("nixl", "from the host of process 'a' to node 'x', which shm does not reach"),
        ("b", "c"): ("nixl", "from the host of process 'a' to node 'x', which shm does not reach"),
        ("c", "d"): ("shm", "both on node 'x'"),
    }
    assert resolved["config"] == resolve_config(config)["config"]


def test_the_command_shows_what_ray_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pipeline.yaml"
    save_config(pipeline(stage("a", "b"), stage("b")), file)
    for launcher, (node, transport) in {"local": (None, "shm"), "ray": ("any", "nixl")}.items():
        assert main(["config", "resolve", "--launcher", launcher, str(file)]) == 0
        resolved = yaml.safe_load(capsys.readouterr().out)
        assert [process["node"] for process in resolved["processes"]] == [node, node]
        assert [edge["transport"] for edge in resolved["edges"]] == [transport]


# --- both ends -------------------------------------------------------------------------------


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineConfig:
    """Up to six stages over up to four processes, which have nodes and replicas of their own."""
    nodes = st.sampled_from([None, "x", "y"])
    backends = st.sampled_from([*NETWORKED, LENDING])
    processes = []
    for name in "pqrs":
        count = draw(st.integers(1, 3))
        node = draw(nodes) if count == 1 or draw(st.booleans()) else [draw(nodes) for _ in range(count)]
        processes.append({"process": name, "num_replicas": count, "node": node})
    names = "abcdef"[: draw(st.integers(2, 6))]
    stages = []
    for index, name in enumerate(names):
        own = dict(draw(st.sampled_from(processes)))
        later = st.lists(st.sampled_from(names[index + 1 :] or "-"), unique=True, max_size=3)
        following = [target for target in draw(later) if target != "-"]
        streams = [target for target in draw(later) if target != "-"]
        if draw(st.booleans()):
            own |= {"tp_size": 2, "process": f"tp-{name}"}
        relays = {target: draw(backends) for target in {*following, *streams} if draw(st.booleans())}
        stages.append(stage(name, *following, stream_to=streams, edge_relays=relays, **own))
    stages[-1].terminal = True
    return pipeline(
        *stages,
        relay_backend=draw(st.sampled_from(["shm", *NETWORKED])),
        network_relay_backend=draw(backends),
    )


@given(pipelines())
@settings(max_examples=200, deadline=None)
def test_both_ends_of_every_edge_agree_on_what_carries_it(config: PipelineConfig) -> None:
    processes = plan_pipeline(config).processes
    instances = {instance.name: instance for instance in stage_instances(config)}
    edges = planned(config)
    endpoints = dict.fromkeys(["completion", "abort", *(f"stage_{name}" for name in instances)], "")
    launches = {
        name: plan_stage_launch(instance, config, endpoints, list(edges.values()))
        for name, instance in instances.items()
    }
    for (source, target), edge in edges.items():
        one, other = launches[source], launches[target]
        own = processes.stage_to_process.get(source)
        if own is not None and processes.stage_to_process.get(target) == own:
            assert edge.transport == LOCAL_OBJECT
            assert target in one.same_process_targets
        else:
            assert edge.transport == edge.relay == one.send_over[target] == other.receive_over[source]
            if instances[source].node != instances[target].node:
                assert relay_backend(edge.transport).crosses_hosts
        if edge.relay is not None:
            assert edge.relay in one.relay_configs
            assert edge.relay in other.relay_configs
    for name, launch in launches.items():
        used = {edge.relay for ends, edge in edges.items() if name in ends}
        assert set(launch.relay_configs) == used - {None}


@given(pipelines())
@settings(max_examples=100, deadline=None)
def test_a_request_finds_every_edge_whatever_replicas_it_is_given(config: PipelineConfig) -> None:
    edges = planned(config)
    replicated = {s.process: s.max_replicas for s in config.stages if s.is_replicated}
    for numbers in itertools.product(*(range(count) for count in replicated.values())):
        given_to = dict(zip(replicated, numbers, strict=True))

        def instance(of: StageConfig, given_to: dict[str | None, int] = given_to) -> str:
            return f"{of.name}@r{given_to[of.process]}" if of.is_replicated else of.name

        for sender in config.stages:
            for target in {*sender.next_stages, *sender.stream_to}:
                assert (instance(sender), instance(config.stage(target))) in edges
