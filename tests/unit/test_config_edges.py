"""What carries an edge: chosen by where its ends run, and by what the config says."""

from __future__ import annotations

import itertools
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_omni.cli import main
from sglang_omni.config import (
    LOCAL_OBJECT,
    ConfigError,
    Edge,
    ExecutorConfig,
    PipelineConfig,
    RelayConfig,
    StageConfig,
    StageRuntimeConfig,
    build_process_topology_plan,
    build_stage_placement_plan,
    describe_config,
    plan_edges,
    resolve_config,
    save_config,
    stage_instances,
    validate_config,
)
from sglang_omni.config.edges import check_edges
from sglang_omni.config.io import config_to_dict
from sglang_omni.config.relay_backends import relay_backend
from sglang_omni.pipeline.processes.plan import plan_stage_launch
from sglang_omni.relay import Relay

HERE = __name__
NETWORKED = ["nixl", "mooncake", "nccl"]


ELSE = f"{HERE}.SomebodyElses"


class SomebodyElses(Relay):
    lends_tensors = True


class Near(Relay):
    crosses_hosts = False


def make(gpu_id: int | None = None) -> None: ...


def stage(name: str, *targets: str, **fields: Any) -> StageConfig:
    """A stage in a process of its own that hands on to ``targets``, or to the caller."""
    if fields.get("tp_size", 1) == 1:
        fields.setdefault("process", name)
    following = {"next": list(targets)} if targets else {"terminal": True}
    return StageConfig(name=name, factory=f"{HERE}.make", **(following | fields))


def pipeline(*stages: StageConfig, **fields: Any) -> PipelineConfig:
    return PipelineConfig(model_path="m", stages=list(stages), **fields)


def planned(config: PipelineConfig, **options: Any) -> dict[tuple[str, str], Edge]:
    return {(edge.source, edge.target): edge for edge in plan_edges(config, **options)}


def only(config: PipelineConfig, **options: Any) -> Edge:
    (edge,) = plan_edges(config, **options)
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


@pytest.mark.parametrize("backend", ["shm", *NETWORKED, ELSE])
def test_on_one_host_the_pipelines_relay_is_used(backend: str) -> None:
    edge = only(pipeline(stage("a", "b", stream_to=["b"]), stage("b"), relay_backend=backend))
    assert edge == Edge("a", "b", ("payload", "stream"), backend, "same host", backend)
    near = {"node": "x"}
    edge = only(pipeline(stage("a", "b", **near), stage("b", **near), relay_backend=backend))
    assert (edge.transport, edge.reason) == (backend, "both on node 'x'")


@pytest.mark.parametrize("backend", [*NETWORKED, ELSE])
def test_a_relay_that_reaches_other_hosts_is_used_between_them(backend: str) -> None:
    edge = only(pipeline(stage("a", "b"), stage("b", node="x"), relay_backend=backend))
    assert (edge.transport, edge.reason) == (backend, "from the coordinator's host to node 'x'")


@pytest.mark.parametrize("network", NETWORKED)
def test_where_it_does_not_reach_the_network_relay_is_used(network: str) -> None:
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
    earlier = [
        StageConfig(name=name, executor=ExecutorConfig(factory=f"{HERE}.make"), get_next=f"{HERE}.make")
        for name in "abc"
    ]
    edges = planned(PipelineConfig(stages=earlier))
    assert edges.keys() == set(itertools.product("abc", repeat=2))
    assert edges["a", "b"].transport == "shm"
    # It may name several, and itself, which shares the process.
    assert (edges["a", "a"].transport, edges["a", "a"].relay) == (LOCAL_OBJECT, "shm")


def test_where_all_share_the_callers_process_nothing_else_counts() -> None:
    config = pipeline(stage("a", "b", edge_relays={"b": "nixl"}), stage("b", node="x"))
    assert only(config, process_of={"a": "", "b": ""}).transport == LOCAL_OBJECT


def test_ranks_are_nobodys_neighbours() -> None:
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
    assert list(resolved["gpus"]) == [
        "0 of node 'x'",
        "1 of node 'x'",
        "0 of node 'y'",
        "1 of node 'y'",
    ]


# --- GPUs ------------------------------------------------------------------------------------

QUARTER = {"runtime": StageRuntimeConfig(resources={"total_gpu_memory_fraction": 0.25})}


@pytest.mark.parametrize(
    ("sender", "receiver", "fields", "label"),
    [
        ({"gpu": 0}, {"gpu": 0}, {}, "shm + cuda_ipc"),
        ({"gpu": 0}, {"gpu": 0}, {"relay_backend": ELSE}, f"{ELSE} + cuda_ipc"),
        ({"gpu": 0}, {"gpu": 0}, {"relay_backend": "nccl"}, "nccl"),
        ({"gpu": 0}, {"gpu": 1}, {}, "shm"),
        ({"gpu": 0}, {}, {}, "shm"),
        ({"gpu": 0, "process": "p"}, {"gpu": 0, "process": "p"}, {}, LOCAL_OBJECT),
        ({"gpu": 0, "node": "x"}, {"gpu": 0, "node": "y"}, {}, "nixl"),
        ({"gpu": 0}, {"gpu": 0, "node": "y"}, {"relay_backend": ELSE}, ELSE),
    ],
)
def test_streams_on_one_gpu_are_lent_where_the_relay_can(
    sender: dict[str, Any], receiver: dict[str, Any], fields: dict[str, Any], label: str
) -> None:
    config = pipeline(
        stage("a", "b", stream_to=["b"], **sender, **QUARTER), stage("b", **receiver, **QUARTER), **fields
    )
    assert only(config).label == label


def test_payloads_on_one_gpu_are_not_lent() -> None:
    assert not only(pipeline(stage("a", "b", gpu=0, **QUARTER), stage("b", gpu=0, **QUARTER))).cuda_ipc


def test_ranks_do_not_lend() -> None:
    config = pipeline(
        stage("a", "b", stream_to=["b"], tp_size=2, gpu=[0, 1], **QUARTER), stage("b", gpu=0, **QUARTER)
    )
    assert not only(config).cuda_ipc


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"edge_relays": {"b": "shm"}},
            "stage 'a' sends to 'b' from the coordinator's host to node 'x', but 'shm', of edge_relays, does "
            "not reach other hosts; use one of ",
        ),
        (
            {"network_relay_backend": "shm"},
            "stage 'a' sends to 'b' from the coordinator's host to node 'x', but 'shm', of "
            "network_relay_backend, does not reach other hosts",
        ),
    ],
)
def test_a_relay_of_one_host_cannot_leave_it(config: dict[str, Any], text: str) -> None:
    own = {key: config.pop(key) for key in ["edge_relays"] if key in config}
    with pytest.raises(ValueError, match=re.escape(text)):
        check_edges(pipeline(stage("a", "b", **own), stage("b", node="x"), **config))


def test_it_may_where_no_edge_leads_there() -> None:
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


@pytest.mark.parametrize("wrong", ["carrier-pigeon", "zmq", ""])
def test_a_backend_that_nobody_knows_is_refused_with_the_known_ones(wrong: str) -> None:
    text = f"relay_backend: there is no relay backend {wrong!r}; valid names: 'mooncake', 'nccl', 'nixl'"
    with pytest.raises(ValueError, match=re.escape(text)):
        pipeline(stage("a", "b"), stage("b"), relay_backend=wrong)


def test_a_relay_of_ones_own_is_its_class() -> None:
    near = pipeline(stage("a", "b"), stage("b", node="x"), relay_backend=f"{HERE}.Near")
    assert only(near).transport == "nixl"
    near.network_relay_backend = f"{HERE}.Near"
    with pytest.raises(ValueError, match="does not reach other hosts; use one of"):
        check_edges(near)
    for path, problem in (
        (f"{HERE}.Neer", "has no 'Neer'; did you mean 'Near'"),
        ("no_such_module.Relay", "relay backend: cannot import 'no_such_module.Relay': no module named"),
        (f"{HERE}.HERE", "is a str, not a class"),
    ):
        near.relay_backend = path
        with pytest.raises(ValueError, match=re.escape(problem)):
            validate_config(near)
    here = pipeline(stage("a", "b"), stage("b"), relay_backend="no_such_module.Relay")
    with pytest.raises(ValueError, match=r"relay_backend: .*'no_such_module'"):
        validate_config(here)


@pytest.mark.parametrize(
    ("wrong", "right"), [("nixi", "nixl"), ("moncake", "mooncake"), ("SHM", "shm"), ("ncccl", "nccl")]
)
def test_a_misspelt_backend_is_named_with_the_nearest(wrong: str, right: str) -> None:
    fields: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("relay_backend", {}, {"relay_backend": wrong}),
        ("network_relay_backend", {}, {"network_relay_backend": wrong}),
        ("stage 'a': edge_relays['b']", {"edge_relays": {"b": wrong}}, {}),
    ]
    for where, of_stage, of_pipeline in fields:
        text = f"{where}: there is no relay backend {wrong!r}; did you mean {right!r}?"
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
    backends = st.sampled_from([*NETWORKED, ELSE])
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
    processes = build_process_topology_plan(config, build_stage_placement_plan(config))
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


# --- the options of a stage's relays ---------------------------------------------------------


def relays_of(config: PipelineConfig, name: str, **options: Any) -> dict[str, dict[str, Any]]:
    (instance,) = [it for it in stage_instances(config) if it.name == name]
    endpoints = dict.fromkeys(["completion", "abort", *(f"stage_{s.name}" for s in config.stages)], "")
    return plan_stage_launch(instance, config, endpoints, plan_edges(config), **options).relay_configs


def test_each_relay_of_a_stage_has_the_stages_options() -> None:
    given_options = RelayConfig(
        slot_size_mb=8, credits=3, backend_options={"timeout_s": 5.0, "protocol": "rdma"}
    )
    config = pipeline(
        stage("a", "b", "c", relay=given_options, edge_relays={"c": "mooncake"}), stage("b"), stage("c")
    )
    relays = relays_of(config, "a")
    assert relays.keys() == {"shm", "mooncake"}
    for options in relays.values():
        assert (options["slot_size_mb"], options["credits"], options["timeout_s"]) == (8, 3, 5.0)
    assert relays_of(config, "b").keys() == {"shm"}


def test_shared_memory_stays_on_the_cpu_beside_a_relay_of_the_gpu() -> None:
    config = pipeline(stage("a", "b", "c", gpu=1, edge_relays={"c": "nccl"}), stage("b"), stage("c"))
    devices = {name: options["device"] for name, options in relays_of(config, "a").items()}
    assert devices == {"shm": "cpu", "nccl": "cuda:1"}
    config.stages[0].relay = RelayConfig(device="cuda:1")
    devices = {name: options["device"] for name, options in relays_of(config, "a").items()}
    assert devices == {"shm": "cpu", "nccl": "cuda:1"}


def test_the_hosts_address_is_where_networked_relays_are_reached() -> None:
    config = pipeline(stage("a", "b", node="x"), stage("b", node="y"))
    assert "host" not in relays_of(config, "a")["nixl"]
    assert relays_of(config, "a", host_address="10.0.0.1")["nixl"]["host"] == "10.0.0.1"
    config.stages[0].relay = RelayConfig(backend_options={"host": "10.9.0.1"})
    assert relays_of(config, "a", host_address="10.0.0.1")["nixl"]["host"] == "10.9.0.1"


def test_a_relays_device_follows_the_placement_unless_it_was_set() -> None:
    config = pipeline(stage("a", "b", gpu=1), stage("b"), relay_backend="nccl")
    for relay, device in [
        (None, "cuda:1"),
        (RelayConfig(credits=4), "cuda:1"),
        (RelayConfig(credits=4, device="cpu"), "cpu"),
        (RelayConfig(device="cuda:2"), "cuda:2"),
    ]:
        config.stages[0].relay = relay
        assert relays_of(config, "a")["nccl"]["device"] == device
        # It is still so in another process, and after a file.
        again = PipelineConfig.from_dict(config_to_dict(pickle.loads(pickle.dumps(config))))
        assert relays_of(again, "a")["nccl"]["device"] == device
        dumped = PipelineConfig.from_dict(config.model_dump(mode="json"))
        assert relays_of(dumped, "a")["nccl"]["device"] == device
    assert RelayConfig().device == "cpu"


def test_shared_memory_takes_no_device_from_a_stage_that_says_nothing_of_it() -> None:
    config = pipeline(stage("a", "b", gpu=1, relay=RelayConfig(credits=4)), stage("b"))
    assert relays_of(config, "a")["shm"]["device"] == "cpu"


class Ranked(SomebodyElses):
    def __init__(self, engine_id: str, rank: int, world_size: int, device: str) -> None: ...


@pytest.mark.parametrize(
    ("backend", "relay", "text"),
    [
        (
            "shm",
            {"rank": 1},
            r"stage 'a': relay.rank: none of the stage's relays, shm, reads it; leave",
        ),
        ("nccl", {"world_size": 2}, r"relay.world_size: none of the stage's relays, nccl, reads it"),
        ("nixl", {"device": "cuda:0"}, r"relay.device: none of .*, nixl, reads it; leave it out \(nccl and "),
        ("mooncake", {"device": "cuda"}, r"relay.device: none of the stage's relays, mooncake, reads it"),
        ("shm", {"device": "cuda:1"}, r"relay.device: none of the stage's relays, shm, reads it"),
        (f"{HERE}.Ranked", {"credits": 3}, r"relay.credits: none of .*Ranked, reads it; .*shm and nixl"),
    ],
)
def test_a_setting_that_no_relay_of_the_stage_reads_is_refused(
    backend: str, relay: dict[str, Any], text: str
) -> None:
    config = pipeline(stage("a", "b", relay=RelayConfig(**relay)), stage("b"), relay_backend=backend)
    with pytest.raises(ConfigError, match=text):
        validate_config(config)


@pytest.mark.parametrize(
    ("backend", "relay"),
    [
        ("nixl", {"device": "cpu", "credits": 1, "rank": None}),
        ("nccl", {"device": "cuda:1", "slot_size_mb": 8}),
        (f"{HERE}.Ranked", {"rank": 3, "world_size": 7, "device": "cuda"}),
    ],
)
def test_a_setting_that_a_relay_of_the_stage_reads_is_good(backend: str, relay: dict[str, Any]) -> None:
    config = pipeline(stage("a", "b", relay=RelayConfig(**relay)), stage("b"), relay_backend=backend)
    validate_config(config)
    given = relays_of(config, "a")[backend]
    assert {name: given[name] for name in relay if relay[name] is not None} == {
        name: value for name, value in relay.items() if value is not None
    }


def test_a_setting_counts_for_the_relays_that_the_stages_edges_have() -> None:
    near = pipeline(stage("a", "b", relay=RelayConfig(rank=1)), stage("b", process="a"))
    validate_config(near)  # It has no relay at all.
    config = pipeline(stage("a", "b", "c", edge_relays={"c": "nccl"}), stage("b"), stage("c"))
    config.stages[2].relay = RelayConfig(device="cuda:1")  # What it receives comes over nccl.
    validate_config(config)
    config.stages[1].relay = RelayConfig(device="cuda:1")
    with pytest.raises(ConfigError, match=r"stage 'b': relay.device: none of the stage's relays, shm, reads"):
        validate_config(config)


def test_only_the_first_rank_has_relays() -> None:
    config = pipeline(stage("a", "b", tp_size=2), stage("b"))
    assert relays_of(config, "a", tp_rank=0).keys() == {"shm"}
    assert relays_of(config, "a", tp_rank=1) == {}
