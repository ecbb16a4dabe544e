"""Every rule of a pipeline's graph, and the words in which it is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from edge_pipelines import legacy
from pydantic import ValidationError

from sglang_omni.config import (
    ConfigError,
    PipelineConfig,
    StageConfig,
    check_inputs,
    check_terminals,
    compile_pipeline,
    validate_config,
    validate_pipeline,
)


def stage(name: str, **fields: Any) -> StageConfig:
    if fields.get("tp_size", 1) == 1:
        fields.setdefault("process", "main")
    fields.setdefault("factory", "pkg.make")
    return StageConfig(name=name, **fields)


def pipeline(*stages: StageConfig, **fields: Any) -> PipelineConfig:
    return PipelineConfig(**{"model_path": "m", "stages": list(stages), **fields})


def end(name: str, **fields: Any) -> StageConfig:
    return stage(name, terminal=True, **fields)


def broken(text: str, *stages: Any, **fields: Any) -> tuple[str, Callable[[], PipelineConfig]]:
    return text, lambda: pipeline(*stages, **fields)


BROKEN = {
    "no stages": broken("at least one stage"),
    "no model": broken("model_path is required", end("a"), model_path=""),
    "name used twice": broken("stage 'a': name is used 2 times", stage("a", next="a"), end("a")),
    "entry is no stage": broken(
        "entry_stage 'thinkr' is not defined; did you mean 'thinker'", end("thinker"), entry_stage="thinkr"
    ),
    "no factory": broken("stage 'a': factory is missing", end("a", factory=None)),
    "neither next nor terminal": broken("stage 'a' must set exactly one of 'next' or 'terminal'", stage("a")),
    "both next and terminal": broken("stage 'a' must set exactly one of", end("a", next="b"), end("b")),
    "empty next": broken("stage 'a': next is empty", stage("a", next=[]), end("b")),
    "an option of no relay": broken(
        "stage 'a': relay.backend_options: none of .*, nixl, shm, takes 'hst'; did you mean 'host'",
        end("a", relay={"backend_options": {"hst": "10.0.0.1"}}),
    ),
    "an option of another relay": broken(
        "stage 'a': .*, nccl, nixl, takes 'protocol'; mooncake would",
        stage("a", next="b", relay={"backend_options": {"protocol": "rdma"}}),
        end("b"),
        relay_backend="nccl",
    ),
    "a relay's field among its options": broken(
        "none of .* takes 'credits'; valid names: 'allow_public'",
        end("a", relay={"backend_options": {"credits": 9}}),
    ),
    "nothing terminal": broken("none is terminal", stage("a", next="b"), stage("b", next="a")),
    "next": broken(
        r"stage 'a': next has unknown stages: \['thinkr'\]; did you mean 'thinker'",
        stage("a", next="thinkr"),
        end("thinker"),
    ),
    "one of next": broken(
        r"stage 'a': next has unknown stages: \['zzz'\]; valid names: 'a', 'b'",
        stage("a", next=["b", "zzz"]),
        end("b"),
    ),
    "wait_for": broken(
        r"stage 'a': wait_for has unknown stages: \['bb'\]; did you mean 'b'",
        end("a", wait_for=["bb"], merge_fn="pkg.m"),
        end("b"),
    ),
    "stream_to": broken(r"stage 'a': stream_to has unknown stages: \['x'\]", end("a", stream_to=["x"])),
    "project_payload": broken(
        r"stage 'a': project_payload has unknown stages: \['x'\]", end("a", project_payload={"x": "pkg.f"})
    ),
    "runtime_overrides": broken(
        r"runtime_overrides has unknown stages: \['thiner'\]; did you mean 'thinker'",
        end("thinker"),
        runtime_overrides={"thiner": {}},
    ),
    "fused_stages": broken(
        r"fused_stages has unknown stages: \['c'\]", stage("a", next="b"), end("b"), fused_stages=[["a", "c"]]
    ),
    "repeated next": broken(r"next names \['b'\] more than once", stage("a", next=["b", "b"]), end("b")),
    "repeated wait_for": broken(
        r"wait_for names \['a'\] more than once",
        stage("a", next="b"),
        end("b", wait_for=["a", "a"], merge_fn="pkg.m"),
    ),
    "wait_for without merge_fn": broken(
        "stage 'a' has wait_for but no merge_fn", end("a", wait_for=["b"]), end("b")
    ),
    "wait_for_fn without wait_for": broken(
        "stage 'a' has wait_for_fn but no wait_for", end("a", wait_for_fn="pkg.w")
    ),
    "merge_fn without wait_for": broken("stage 'a' has merge_fn but no wait_for", end("a", merge_fn="pkg.m")),
    "project_payload for a stage that gets none": broken(
        "stage 'a': project_payload names 'c', to which the stage sends no payload; .*'b'",
        stage("a", next="b", stream_to=["c"], project_payload={"c": "pkg.p"}),
        stage("b", next="c"),
        end("c"),
    ),
    "a port without tcp": broken(
        "endpoints: base_port=9000 is of scheme 'tcp', but scheme is 'ipc', .* set scheme to 'tcp', or leave",
        end("a"),
        endpoints={"base_port": 9000},
    ),
    "an address without tcp": broken(
        "endpoints: host='10.0.0.1' is of scheme 'tcp'", end("a"), endpoints={"host": "10.0.0.1"}
    ),
    "two placements": broken(
        "stage 'a': gpu=0 conflicts with gpu_placement, which says 1", end("a", gpu=0), gpu_placement={"a": 1}
    ),
    "sources of one sender at a time": broken(
        "type 'direct' takes no 'sources'",
        legacy("a"),
        {
            "name": "b",
            "executor": {"factory": "pkg.make"},
            "get_next": "pkg.n",
            "input_handler": {"type": "direct", "sources": ["a"]},
        },
    ),
    "route_fn at the end": broken(
        "stage 'a' cannot set route_fn on a terminal stage", end("a", route_fn="pkg.r")
    ),
    "stream_done_to_fn alone": broken(
        "stage 'a' cannot set stream_done_to_fn without stream_to", end("a", stream_done_to_fn="pkg.s")
    ),
    "too few gpus": broken("stage 'a': gpu has 1 entries but tp_size=2", end("a", tp_size=2, gpu=[0])),
    "too many gpus": broken("stage 'a': gpu has 2 entries but tp_size=1", end("a", gpu=[0, 1])),
    "negative gpu": broken("stage 'a': gpu ids must not be negative", end("a", gpu=-1)),
    "workers of a TP stage": broken(
        "stage 'a': num_workers=2 cannot go with tp_size=2", end("a", tp_size=2, gpu=[0, 1], num_workers=2)
    ),
    "no process": broken(
        r"Non-TP stages must declare process; missing for \['a'\]",
        stage("a", process=None, next="b"),
        end("b"),
    ),
    "unknown runtime value": broken(
        "stage 'a': runtime_arg_map has no runtime value 'max_seqlen'; did you mean 'max_seq_len'",
        end("a", runtime_arg_map={"max_seqlen": "x"}),
    ),
    "get_next without executor": broken("stage 'a': get_next belongs to", end("a", get_next="pkg.n")),
    "input_handler without executor": broken(
        "stage 'a': input_handler belongs to", end("a", input_handler={"type": "direct"})
    ),
    "both forms": broken("stage 'a': set either executor or factory", legacy("a", factory="pkg.make")),
    "executor without a route": broken(
        "stage 'a': a stage with executor needs get_next", legacy("a", get_next=None)
    ),
    "two routes": broken("stage 'a': get_next decides the route", legacy("a", next="b"), legacy("b")),
    "sources": broken(
        r"stage 'b': input_handler.sources has unknown stages: \['aa'\]; did you mean 'a'",
        legacy("a"),
        legacy("b", input_handler={"type": "aggregated", "sources": ["aa"], "merge_fn": "pkg.m"}),
    ),
    "two inputs": broken(
        "stage 'b': set either wait_for or input_handler",
        legacy("a"),
        legacy("b", wait_for=["a"], merge_fn="pkg.m", input_handler={"type": "direct"}),
    ),
    "fused alone": broken(r"group \['a'\] needs at least two", end("a"), fused_stages=[["a"]]),
    "fused out of order": broken(
        "must name adjacent stages in the order", stage("a", next="b"), end("b"), fused_stages=[["b", "a"]]
    ),
    "fused with a gap": broken(
        "must name adjacent stages in the order",
        stage("a", next="b"),
        stage("b", next="c"),
        end("c"),
        fused_stages=[["a", "c"]],
    ),
    "fused TP": broken(
        "cannot include TP stage 'b'",
        stage("a", next="b"),
        end("b", tp_size=2, gpu=[0, 1]),
        fused_stages=[["a", "b"]],
    ),
    "fused over GPUs": broken(
        r"spans multiple GPUs \[0, 1\]",
        stage("a", gpu=0, next="b"),
        end("b", gpu=1),
        fused_stages=[["a", "b"]],
    ),
    "fused inner goes elsewhere": broken(
        "stage 'a' must route only to 'b'",
        stage("a", next="c"),
        stage("b", next="c"),
        end("c"),
        fused_stages=[["a", "b"]],
    ),
    "fused inner fans out": broken(
        "stage 'a' must route only to 'b'",
        stage("a", next=["b", "c"]),
        stage("b", next="c"),
        end("c"),
        fused_stages=[["a", "b"]],
    ),
    "fused inner chooses": broken(
        "stage 'a' must route only to 'b'",
        stage("a", next="b", route_fn="pkg.r"),
        end("b"),
        fused_stages=[["a", "b"]],
    ),
    "fused inner ends": broken(
        "stage 'a' must route only to 'b'", end("a"), end("b"), fused_stages=[["a", "b"]]
    ),
    "fused fan-in": broken(
        "cannot include fan-in stage 'b'",
        stage("a", next="b"),
        end("b", wait_for=["a"], merge_fn="pkg.m"),
        fused_stages=[["a", "b"]],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_is_refused(case: str) -> None:
    text, build = BROKEN[case]
    with pytest.raises(ValidationError, match=text):
        build()


def test_a_pipeline_that_uses_everything_is_accepted() -> None:
    config = pipeline(
        stage("pre", next=["enc", "merge"], route_fn="pkg.r", project_payload={"enc": "pkg.p"}),
        stage("enc", next="merge", gpu=0, process="gpu", num_workers=2),
        stage("merge", wait_for=["pre", "enc"], wait_for_fn="pkg.w", merge_fn="pkg.m", next="think"),
        stage("think", tp_size=2, gpu=[1, 2], next="text", stream_to=["speak"], stream_done_to_fn="pkg.s"),
        stage("text", terminal=True),
        stage("speak", terminal=True, can_accept_stream_before_payload=True),
        runtime_overrides={"think": {"x": 1}},
        terminal_stages_fn="pkg.t",
    )
    assert config.terminal_stages == ["text", "speak"]


def test_groups_of_fused_stages_may_share_a_stage() -> None:
    config = pipeline(
        stage("a", next="b"), stage("b", next="c"), end("c"), fused_stages=[["a", "b"], ["b", "c"]]
    )
    assert config.fused_stages == [["a", "b"], ["b", "c"]]


def test_fused_stages_of_the_legacy_form_route_when_they_run() -> None:
    config = PipelineConfig(stages=[legacy("a"), legacy("b")], fused_stages=[["a", "b"]])
    assert config.is_legacy


def test_the_first_stage_of_a_fused_group_may_fan_in() -> None:
    pipeline(
        stage("a", next="b"),
        stage("b", wait_for=["a"], merge_fn="pkg.m", next="c"),
        end("c"),
        fused_stages=[["b", "c"]],
    )


def test_assignments_are_checked_on_demand() -> None:
    config = pipeline(stage("a", next="b"), end("b"))
    config.stages[0].next = "c"
    with pytest.raises(ValueError, match="unknown stages"):
        validate_pipeline(config)
    config.stages[0].next = "b"
    config.stages[0].parallelism.tp = 2
    with pytest.raises(ValueError, match="conflicts"):
        validate_pipeline(config)


NUMBERS = [
    "num_replicas num_workers tp_size gpu",
    "relay.slot_size_mb relay.credits relay.rank relay.world_size",
    "autoscaling.min_replicas autoscaling.max_replicas autoscaling.target_ongoing_requests",
    "autoscaling.upscale_delay_s autoscaling.downscale_delay_s parallelism.tp",
    "runtime.max_seq_len runtime.video_fps runtime.resources.num_cpus",
    "runtime.resources.total_gpu_memory_fraction runtime.sglang_server_args.mem_fraction_static",
]


@pytest.mark.parametrize("field", " ".join(NUMBERS).split())
def test_true_is_no_number(field: str) -> None:
    first, *inside = field.split(".")
    value: Any = True
    for name in reversed(inside):
        value = {name: value}
    if first == "autoscaling":
        value = {"max_replicas": 2} | value
    with pytest.raises(ValidationError, match=rf"stage 'a': {first}.*([tT]rue)"):
        StageConfig(name="a", factory="pkg.make", process="a", terminal=True, **{first: value})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"gpu": "cuda:0"}, "gpu must be a GPU's id or a list of ids, not 'cuda:0'"),
        ({"gpu": [0, True]}, r"gpu must be a GPU's id or a list of ids, not \[0, True\]"),
        ({"node": 5}, "node must be a host's name or a list with a name, or null, for each replica, not 5"),
        ({"next": {"b": 1}}, "next must be a stage's name or a list of names, not {'b': 1}"),
        ({"autoscaling": {"max_replicas": 2, "upscale_delay_s": float("inf")}}, "should be a finite number"),
    ],
)
def test_what_a_field_cannot_hold_is_said_once(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=f"stage 'a': .*{text}") as caught:
        StageConfig(name="a", factory="pkg.make", process="a", **fields)
    assert caught.value.error_count() == 1


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (["x"], "node has 1 entries, but there may be 2 replicas"),
        (["x", " "], "node must not be an empty name; null is the coordinator's host"),
    ],
)
def test_a_list_of_nodes_has_one_for_each_replica(node: list[str], text: str) -> None:
    with pytest.raises(ValidationError, match=f"stage 'a': {text}"):
        pipeline(end("a", num_replicas=2, node=node))
    pipeline(end("a", num_replicas=2, node=["x", None]))


def test_a_terminal_stage_that_no_request_reaches_is_named() -> None:
    # Nothing leads to "c" and "d" but they themselves.
    lost = [stage("a", next="b"), end("b"), stage("c", next="d"), end("d")]
    text = "stage 'd' is terminal, and no route from the entry stage 'a' leads to it"
    with pytest.raises(ConfigError, match=text):
        validate_config(pipeline(*lost))
    with pytest.raises(ValueError, match=text):
        compile_pipeline(pipeline(*lost))
    with pytest.raises(ConfigError, match="stage 'a' is terminal, and no route from the entry stage 'b'"):
        validate_config(pipeline(end("a"), end("b"), entry_stage="b"))
    # A stream leads there, too.
    streamed = stage("a", next="b", stream_to=["c"])
    check_terminals(pipeline(streamed, *lost[1:]))
    # Another field decides.
    check_terminals(pipeline(*lost, terminal_stages_fn="pkg.who_answers"))


def test_no_stage_waits_for_a_payload_that_none_sends() -> None:
    merged = {"merge_fn": "pkg.m", "wait_for": ["a", "b"]}
    stages = [stage("a", next="c"), stage("b", next="d", stream_to=["c"])]
    waiting = [*stages, stage("c", next="d", **merged), end("d")]
    with pytest.raises(
        ConfigError,
        match=r"stage 'c': wait_for names 'b', which sends it no payload, .*'next' of 'b', or leave",
    ):
        validate_config(pipeline(*waiting))
    with pytest.raises(ValueError, match="wait_for names 'b'"):
        compile_pipeline(pipeline(*waiting))
    # Another field decides.
    check_inputs(pipeline(*stages, stage("c", next="d", wait_for_fn="pkg.w", **merged), end("d")))
    routed = legacy("a")
    handler = {"type": "aggregated", "sources": ["a"], "merge_fn": "pkg.m"}
    check_inputs(pipeline(routed, legacy("b", input_handler=handler)))
