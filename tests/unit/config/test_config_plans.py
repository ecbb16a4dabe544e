"""Where stages run: GPUs, memory budgets, processes."""

from __future__ import annotations

from typing import Any

import pytest
from edge_pipelines import legacy
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_omni.config import (
    PipelineConfig,
    PlacementConfig,
    ProcessTopologyPlan,
    StageConfig,
    StagePlacementPlan,
    StageRuntimeConfig,
    build_process_topology_plan,
    build_stage_placement_plan,
    resolve_stage_gpu_ids,
)
from sglang_omni.config.plan.edges import terminals_after


def chain(*stages: dict[str, Any], **fields: Any) -> PipelineConfig:
    """A pipeline of stages a, b, c ... each of which hands on to the next."""
    names = "abcdefgh"[: len(stages)]
    built = []
    for index, (name, wanted) in enumerate(zip(names, stages, strict=True)):
        own = dict(wanted)
        fraction = own.pop("fraction", None)
        if fraction is not None:
            own["runtime"] = StageRuntimeConfig(resources={"total_gpu_memory_fraction": fraction})
        if own.get("tp_size", 1) == 1:
            own.setdefault("process", "main")
        last = index == len(names) - 1
        built.append(
            StageConfig(
                name=name, factory="pkg.make", next=None if last else names[index + 1], terminal=last, **own
            )
        )
    return PipelineConfig(model_path="m", stages=built, **fields)


def processes(config: PipelineConfig) -> ProcessTopologyPlan:
    return build_process_topology_plan(config, build_stage_placement_plan(config))


def test_placement_lists_stages_on_gpus_and_gpus_with_stages() -> None:
    config = chain(
        {"gpu": 0, "fraction": 0.1}, {}, {"gpu": 0}, {"tp_size": 2, "gpu": [0, 3], "fraction": 0.3}
    )
    plan = build_stage_placement_plan(config)
    assert list(plan.stages) == ["a", "c", "d"]
    assert plan.stages["a"].gpu_ids == (0,)
    assert plan.stages["a"].total_gpu_memory_fraction == 0.1
    assert (plan.stages["d"].gpu_ids, plan.stages["d"].tp_size) == ((0, 3), 2)
    assert list(plan.gpus) == [0, 3]
    assert plan.gpus[0].stage_names == ("a", "c", "d")
    assert plan.gpus[0].total_gpu_memory_fraction == pytest.approx(0.4)
    assert plan.gpus[0].missing_fraction_stage_names == ("c",)
    assert plan.gpus[3].total_gpu_memory_fraction == pytest.approx(0.3)
    assert plan.gpus[3].missing_fraction_stage_names == ()


def test_gpu_ids_are_one_for_each_rank() -> None:
    config = chain({"tp_size": 2, "gpu": [1, 3]}, {"gpu": 2}, {}, {"tp_size": 2})
    plan = build_stage_placement_plan(config)
    assert [resolve_stage_gpu_ids(plan, stage) for stage in config.stages] == [
        [1, 3],
        [2],
        [None],
        [None, None],
    ]


REFUSED: dict[str, tuple[str, PipelineConfig]] = {
    "TP with one GPU id": (
        "stage 'a': TP placement requires a list of 2 unique GPU ids, got scalar",
        chain({"tp_size": 2, "gpu": 0}),
    ),
    "TP with the same GPU twice": (
        r"2 unique GPU ids, got gpu=\[0, 0\]",
        chain({"tp_size": 2, "gpu": [0, 0]}),
    ),
    "budgets over the limit, even inside one process": (
        r"GPU 0: .*\['a', 'b'\] adds up to 1.100, which exceeds placement limit 1.000",
        chain({"gpu": 0, "fraction": 0.35}, {"gpu": 0, "fraction": 0.75}),
    ),
    "two TP stages with one process name": (
        r"stage 'b': Duplicate TP process names: 'x_tp0' .* stage 'a'",
        chain(*({"tp_size": 2, "gpu": gpus, "process": "x"} for gpus in ([0, 1], [2, 3]))),
    ),
    "a TP process that hosts another stage": (
        r"stage 'b': .* collide with the process 'b_tp1' of stages \['a'\]",
        chain({"process": "b_tp1"}, {"tp_size": 2, "gpu": [0, 1]}),
    ),
    "a process on two GPUs": (
        r"process 'main' spans multiple GPUs \[0, 1\] \('a' on 0, 'c' on 1\)",
        chain({"gpu": 0}, {}, {"gpu": 1}),
    ),
    "a rank without a budget on a shared GPU": (
        r"GPU 1 is shared .* on \['b'\]; every stage of processes \['b_tp1', 'p'\]",
        chain({"gpu": 1, "process": "p", "fraction": 0.5}, {"tp_size": 2, "gpu": [0, 1]}),
    ),
    "merged processes on two GPUs": (
        "process 'p' spans multiple GPUs",
        chain(
            *({"process": "p", "gpu": 0}, {"process": "p"}, {"process": "q"}, {"process": "q", "gpu": 1}),
            fused_stages=[["b", "c"]],
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_plan_is_refused(case: str) -> None:
    text, config = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        processes(config)


def test_tp_size_assigned_later_is_checked_against_the_gpus() -> None:
    config = chain({"gpu": [0]})
    config.stages[0].tp_size = 2
    with pytest.raises(ValueError, match="gpu has 1 entries but tp_size=2"):
        build_stage_placement_plan(config)


def test_budgets_are_compared_with_the_configured_limit() -> None:
    parts = ({"gpu": 0, "fraction": 0.4}, {"gpu": 0, "fraction": 0.5})
    build_stage_placement_plan(
        chain(*parts, placement=PlacementConfig(max_total_gpu_memory_fraction_per_gpu=0.9))
    )
    with pytest.raises(ValueError, match=r"exceeds placement limit 0.800"):
        build_stage_placement_plan(
            chain(*parts, placement=PlacementConfig(max_total_gpu_memory_fraction_per_gpu=0.8))
        )


def test_budgets_that_add_up_to_the_limit_in_decimal_fit() -> None:
    build_stage_placement_plan(chain(*({"gpu": 0, "fraction": f} for f in (0.1, 0.2, 0.7))))


@pytest.mark.parametrize("field", ["factory_args", "runtime_overrides"])
def test_a_budget_that_the_plan_cannot_see_is_refused(field: str) -> None:
    budget = {"total_gpu_memory_fraction": 0.5}
    if field == "factory_args":
        config = chain({"gpu": 0, "factory_args": budget})
    else:
        config = chain({"gpu": 0}, runtime_overrides={"a": budget})
    with pytest.raises(
        ValueError, match=f"stage 'a': {field} .*set runtime.resources.total_gpu_memory_fraction"
    ):
        build_stage_placement_plan(config)


class RefuseStageA:
    def validate(self, config: PipelineConfig, plan: StagePlacementPlan) -> None:
        if "a" in plan.stages:
            raise ValueError(f"{config.name}: a must not be on a GPU")


class NoPolicy:
    pass


def test_the_pipelines_own_policy_sees_the_plan() -> None:
    policy = f"{__name__}.RefuseStageA"
    build_stage_placement_plan(chain({}, placement_policy=policy))
    with pytest.raises(ValueError, match="m: a must not be on a GPU"):
        build_stage_placement_plan(chain({"gpu": 0}, placement_policy=policy))


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="NoPolicy' has no validate"):
        build_stage_placement_plan(chain({}, placement_policy=f"{__name__}.NoPolicy"))
    with pytest.raises(ImportError, match=r"placement_policy: .*did you mean 'NoPolicy'"):
        build_stage_placement_plan(chain({}, placement_policy=f"{__name__}.NoPolici"))


def test_stages_that_name_one_process_share_it() -> None:
    plan = processes(chain({"process": "p"}, {"process": "q", "gpu": 1}, {"process": "p"}))
    assert [tuple(group) for group in plan.groups] == [("p", ("a", "c"), None), ("q", ("b",), 1)]
    assert (plan.groups[1].name, plan.groups[1].stage_names, plan.groups[1].gpu_id) == ("q", ("b",), 1)
    assert plan.stage_to_process == {"a": "p", "c": "p", "b": "q"}
    assert plan.tp_stage_to_processes == {}


def test_a_process_may_mix_the_cpu_and_one_gpu() -> None:
    (group,) = processes(chain({}, {"gpu": 2}, {"gpu": 2})).groups
    assert group == ("main", ("a", "b", "c"), 2)


def test_each_tp_rank_has_a_process_of_its_own() -> None:
    plan = processes(
        chain({}, {"tp_size": 2, "gpu": [0, 1]}, {"tp_size": 2, "gpu": [2, 3], "process": "talk"})
    )
    assert plan.groups == (("main", ("a",), None),)
    assert plan.tp_stage_to_processes == {"b": ("b_tp0", "b_tp1"), "c": ("talk_tp0", "talk_tp1")}


def test_processes_share_a_gpu_only_with_budgets() -> None:
    config = chain({"gpu": 0, "process": "p", "fraction": 0.2}, {"gpu": 0, "process": "q"})
    with pytest.raises(
        ValueError, match=r"GPU 0 is shared .* without runtime.resources.total_gpu_memory_fraction on \['b'\]"
    ):
        processes(config)
    config.stages[1].runtime.resources.total_gpu_memory_fraction = 0.3
    assert len(processes(config).groups) == 2


def test_inside_one_process_no_budget_is_needed() -> None:
    assert len(processes(chain({"gpu": 0}, {"gpu": 0})).groups) == 1


def test_budgets_across_processes_may_be_waived() -> None:
    waived = PlacementConfig(require_memory_fraction_for_colocation=False)
    config = chain({"gpu": 0, "process": "p"}, {"gpu": 0, "process": "q"}, placement=waived)
    assert len(processes(config).groups) == 2


def test_fusing_merges_processes_under_the_first_ones_name() -> None:
    plan = processes(
        chain({"process": "p"}, {"process": "q", "gpu": 0}, {"process": "r"}, fused_stages=[["a", "b"]])
    )
    assert [tuple(group) for group in plan.groups] == [("p", ("a", "b"), 0), ("r", ("c",), None)]


def test_connected_fused_groups_become_one_process() -> None:
    stages = [{"process": name} for name in ("p", "q", "r", "s")]
    plan = processes(chain(*stages, fused_stages=[["c", "d"], ["a", "b"], ["b", "c"]]))
    assert [tuple(group) for group in plan.groups] == [("p", ("a", "b", "c", "d"), None)]


def test_fusing_two_stages_brings_along_all_of_their_processes() -> None:
    config = chain(
        {"process": "p"}, {"process": "q"}, {"process": "r"}, {"process": "p"}, fused_stages=[["b", "c"]]
    )
    assert [tuple(group) for group in processes(config).groups] == [
        ("p", ("a", "d"), None),
        ("q", ("b", "c"), None),
    ]
    config = chain(
        {"process": "p"}, {"process": "q"}, {"process": "r"}, {"process": "q"}, fused_stages=[["b", "c"]]
    )
    assert processes(config).stage_to_process == {"a": "p", "b": "q", "c": "q", "d": "q"}


@settings(max_examples=60)
@given(st.data())
def test_processes_are_what_is_connected(data: st.DataObject) -> None:
    names = "abcdefgh"
    declared = data.draw(st.lists(st.sampled_from("pqrst"), min_size=8, max_size=8))
    spans = data.draw(st.lists(st.tuples(st.integers(0, 6), st.integers(2, 4)), max_size=4))
    fused = [list(names[start : start + length]) for start, length in spans]
    plan = processes(chain(*({"process": process} for process in declared), fused_stages=fused))

    # Spread labels along both kinds of connection until nothing changes.
    connected = [
        [n for n, p in zip(names, declared, strict=True) if p == process] for process in set(declared)
    ] + fused
    label = {name: name for name in names}
    for _ in names:
        for group in connected:
            for name in group:
                label[name] = min(label[member] for member in group)
    expected: dict[str, list[str]] = {}
    for name in names:
        expected.setdefault(label[name], []).append(name)
    assert [list(group.stage_names) for group in plan.groups] == list(expected.values())
    assert [group.name for group in plan.groups] == [declared[names.index(first)] for first in expected]


def test_stages_of_the_legacy_form_have_processes_of_their_own_names() -> None:
    config = PipelineConfig(stages=[legacy("a"), legacy("b")])
    assert processes(config).stage_to_process == {"a": "a", "b": "b"}


def test_memory_budgets_are_of_each_hosts_own_gpus() -> None:
    big = {"gpu": 0, "fraction": 0.7}
    apart = build_stage_placement_plan(
        chain(
            big | {"process": "p"},
            big | {"process": "q", "node": "x"},
            {"gpu": [0, 0], "fraction": 0.7, "process": "r", "num_replicas": 2, "node": ["y", "z"]},
        )
    )
    assert {key: gpu.total_gpu_memory_fraction for key, gpu in apart.gpus.items()} == {
        0: 0.7,
        ("x", 0): 0.7,
        ("y", 0): 0.7,
        ("z", 0): 0.7,
    }
    together = chain(big | {"process": "p", "node": "x"}, big | {"process": "q", "node": "x"})
    with pytest.raises(
        ValueError, match=r"GPU 0 of node 'x': .*\['a', 'b'\] adds up to 1\.400, which exceeds"
    ):
        build_stage_placement_plan(together)
    undeclared = chain({"gpu": 0, "process": "p", "node": "x"}, {"gpu": 0, "process": "q", "node": "x"})
    with pytest.raises(ValueError, match="GPU 0 of node 'x' is shared by multiple process groups"):
        processes(undeclared)
    processes(chain({"gpu": 0, "process": "p", "node": "x"}, {"gpu": 0, "process": "q", "node": "y"}))


def test_the_terminals_a_stage_works_for() -> None:
    def stage(name: str, *following: str, **fields: Any) -> StageConfig:
        route: dict[str, Any] = {"next": list(following)} if following else {"terminal": True}
        return StageConfig(name=name, factory="pkg.make", process=name, **(route | fields))

    config = PipelineConfig(
        model_path="m",
        stages=[
            stage("a", "b", "text"),
            stage("b", "text", stream_to=["speech"]),
            stage("text"),
            stage("speech"),
        ],
    )
    assert terminals_after(["a"], config) == terminals_after(["b"], config) == {"text", "speech"}
    assert terminals_after(["text"], config) == {"text"}
    assert terminals_after(["text", "speech"], config) == {"text", "speech"}
    config.stages[0].next, config.stages[1].stream_to = ["b"], []
    assert terminals_after(["a"], config) == {"text"}
