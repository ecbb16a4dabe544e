"""Every rule of a pipeline's graph, and the words in which it is reported."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sglang_omni.config import (
    ConfigError,
    ExecutorConfig,
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


def legacy(name: str, **fields: Any) -> StageConfig:
    return StageConfig(
        **{"name": name, "executor": ExecutorConfig(factory="pkg.make"), "get_next": "pkg.n", **fields}
    )


def pipeline(*stages: StageConfig, **fields: Any) -> PipelineConfig:
    return PipelineConfig(**{"model_path": "m", "stages": list(stages), **fields})


END = {"terminal": True}

BROKEN: dict[str, tuple[list[StageConfig], dict[str, Any], str]] = {
    "no stages": ([], {}, "at least one stage"),
    "no model": ([stage("a", **END)], {"model_path": ""}, "model_path is required"),
    "name used twice": ([stage("a", next="a"), stage("a", **END)], {}, "stage 'a': name is used 2 times"),
    "entry is no stage": (
        [stage("thinker", **END)],
        {"entry_stage": "thinkr"},
        "entry_stage 'thinkr' is not defined; did you mean 'thinker'",
    ),
    "no factory": ([stage("a", factory=None, **END)], {}, "stage 'a': factory is missing"),
    "neither next nor terminal": ([stage("a")], {}, "stage 'a' must set exactly one of 'next' or 'terminal'"),
    "both next and terminal": (
        [stage("a", next="b", **END), stage("b", **END)],
        {},
        "stage 'a' must set exactly one of",
    ),
    "empty next": ([stage("a", next=[]), stage("b", **END)], {}, "stage 'a': next is empty"),
    "an option of no relay": (
        [stage("a", relay={"backend_options": {"hst": "10.0.0.1"}}, **END)],
        {},
        "stage 'a': relay.backend_options: none of .*, nixl, shm, takes 'hst'; did you mean 'host'",
    ),
    "an option of another relay": (
        [stage("a", next="b", relay={"backend_options": {"protocol": "rdma"}}), stage("b", **END)],
        {"relay_backend": "nccl"},
        "stage 'a': .*, nccl, nixl, takes 'protocol'; mooncake would",
    ),
    "a relay's field among its options": (
        [stage("a", relay={"backend_options": {"credits": 9}}, **END)],
        {},
        "none of .* takes 'credits'; valid names: 'allow_public'",
    ),
    "nothing terminal": ([stage("a", next="b"), stage("b", next="a")], {}, "none is terminal"),
    "next": (
        [stage("a", next="thinkr"), stage("thinker", **END)],
        {},
        "stage 'a': next has unknown stages: \\['thinkr'\\]; did you mean 'thinker'",
    ),
    "one of next": (
        [stage("a", next=["b", "zzz"]), stage("b", **END)],
        {},
        "stage 'a': next has unknown stages: \\['zzz'\\]; valid names: 'a', 'b'",
    ),
    "wait_for": (
        [stage("a", wait_for=["bb"], merge_fn="pkg.m", **END), stage("b", **END)],
        {},
        "stage 'a': wait_for has unknown stages: \\['bb'\\]; did you mean 'b'",
    ),
    "stream_to": (
        [stage("a", stream_to=["x"], **END)],
        {},
        "stage 'a': stream_to has unknown stages: \\['x'\\]",
    ),
    "project_payload": (
        [stage("a", project_payload={"x": "pkg.f"}, **END)],
        {},
        "stage 'a': project_payload has unknown stages: \\['x'\\]",
    ),
    "runtime_overrides": (
        [stage("thinker", **END)],
        {"runtime_overrides": {"thiner": {}}},
        "runtime_overrides has unknown stages: \\['thiner'\\]; did you mean 'thinker'",
    ),
    "fused_stages": (
        [stage("a", next="b"), stage("b", **END)],
        {"fused_stages": [["a", "c"]]},
        "fused_stages has unknown stages: \\['c'\\]",
    ),
    "repeated next": (
        [stage("a", next=["b", "b"]), stage("b", **END)],
        {},
        "next names \\['b'\\] more than once",
    ),
    "repeated wait_for": (
        [stage("a", next="b"), stage("b", wait_for=["a", "a"], merge_fn="pkg.m", **END)],
        {},
        "wait_for names \\['a'\\] more than once",
    ),
    "wait_for without merge_fn": (
        [stage("a", wait_for=["b"], **END), stage("b", **END)],
        {},
        "stage 'a' has wait_for but no merge_fn",
    ),
    "wait_for_fn without wait_for": (
        [stage("a", wait_for_fn="pkg.w", **END)],
        {},
        "stage 'a' has wait_for_fn but no wait_for",
    ),
    "merge_fn without wait_for": (
        [stage("a", merge_fn="pkg.m", **END)],
        {},
        "stage 'a' has merge_fn but no wait_for",
    ),
    "project_payload for a stage that gets none": (
        [
            stage("a", next="b", stream_to=["c"], project_payload={"c": "pkg.p"}),
            stage("b", next="c"),
            stage("c", **END),
        ],
        {},
        "stage 'a': project_payload names 'c', to which the stage sends no payload; .*'b'",
    ),
    "a port without tcp": (
        [stage("a", **END)],
        {"endpoints": {"base_port": 9000}},
        "endpoints: base_port=9000 is of scheme 'tcp', but scheme is 'ipc', .* set scheme to 'tcp', or leave",
    ),
    "an address without tcp": (
        [stage("a", **END)],
        {"endpoints": {"host": "10.0.0.1"}},
        "endpoints: host='10.0.0.1' is of scheme 'tcp'",
    ),
    "two placements": (
        [stage("a", gpu=0, **END)],
        {"gpu_placement": {"a": 1}},
        "stage 'a': gpu=0 conflicts with gpu_placement, which says 1",
    ),
    "sources of one sender at a time": (
        [
            legacy("a"),
            {
                "name": "b",
                "executor": {"factory": "pkg.make"},
                "get_next": "pkg.n",
                "input_handler": {"type": "direct", "sources": ["a"]},
            },
        ],
        {},
        "type 'direct' takes no 'sources'",
    ),
    "route_fn at the end": (
        [stage("a", route_fn="pkg.r", **END)],
        {},
        "stage 'a' cannot set route_fn on a terminal stage",
    ),
    "stream_done_to_fn alone": (
        [stage("a", stream_done_to_fn="pkg.s", **END)],
        {},
        "stage 'a' cannot set stream_done_to_fn without stream_to",
    ),
    "too few gpus": (
        [stage("a", tp_size=2, gpu=[0], **END)],
        {},
        "stage 'a': gpu has 1 entries but tp_size=2",
    ),
    "too many gpus": ([stage("a", gpu=[0, 1], **END)], {}, "stage 'a': gpu has 2 entries but tp_size=1"),
    "negative gpu": ([stage("a", gpu=-1, **END)], {}, "stage 'a': gpu ids must not be negative"),
    "workers of a TP stage": (
        [stage("a", tp_size=2, gpu=[0, 1], num_workers=2, **END)],
        {},
        "stage 'a': num_workers=2 cannot go with tp_size=2",
    ),
    "no process": (
        [stage("a", process=None, next="b"), stage("b", **END)],
        {},
        "Non-TP stages must declare process; missing for \\['a'\\]",
    ),
    "unknown runtime value": (
        [stage("a", runtime_arg_map={"max_seqlen": "x"}, **END)],
        {},
        "stage 'a': runtime_arg_map has no runtime value 'max_seqlen'; did you mean 'max_seq_len'",
    ),
    "get_next without executor": (
        [stage("a", get_next="pkg.n", **END)],
        {},
        "stage 'a': get_next belongs to",
    ),
    "input_handler without executor": (
        [stage("a", input_handler={"type": "direct"}, **END)],
        {},
        "stage 'a': input_handler belongs to",
    ),
    "both forms": ([legacy("a", factory="pkg.make")], {}, "stage 'a': set either executor or factory"),
    "executor without a route": (
        [legacy("a", get_next=None)],
        {},
        "stage 'a': a stage with executor needs get_next",
    ),
    "two routes": ([legacy("a", next="b"), legacy("b")], {}, "stage 'a': get_next decides the route"),
    "sources": (
        [
            legacy("a"),
            legacy("b", input_handler={"type": "aggregated", "sources": ["aa"], "merge_fn": "pkg.m"}),
        ],
        {},
        "stage 'b': input_handler.sources has unknown stages: \\['aa'\\]; did you mean 'a'",
    ),
    "two inputs": (
        [legacy("a"), legacy("b", wait_for=["a"], merge_fn="pkg.m", input_handler={"type": "direct"})],
        {},
        "stage 'b': set either wait_for or input_handler",
    ),
    "fused alone": ([stage("a", **END)], {"fused_stages": [["a"]]}, "group \\['a'\\] needs at least two"),
    "fused out of order": (
        [stage("a", next="b"), stage("b", **END)],
        {"fused_stages": [["b", "a"]]},
        "must name adjacent stages in the order",
    ),
    "fused with a gap": (
        [stage("a", next="b"), stage("b", next="c"), stage("c", **END)],
        {"fused_stages": [["a", "c"]]},
        "must name adjacent stages in the order",
    ),
    "fused TP": (
        [stage("a", next="b"), stage("b", tp_size=2, gpu=[0, 1], **END)],
        {"fused_stages": [["a", "b"]]},
        "cannot include TP stage 'b'",
    ),
    "fused over GPUs": (
        [stage("a", gpu=0, next="b"), stage("b", gpu=1, **END)],
        {"fused_stages": [["a", "b"]]},
        "spans multiple GPUs \\[0, 1\\]",
    ),
    "fused inner goes elsewhere": (
        [stage("a", next="c"), stage("b", next="c"), stage("c", **END)],
        {"fused_stages": [["a", "b"]]},
        "stage 'a' must route only to 'b'",
    ),
    "fused inner fans out": (
        [stage("a", next=["b", "c"]), stage("b", next="c"), stage("c", **END)],
        {"fused_stages": [["a", "b"]]},
        "stage 'a' must route only to 'b'",
    ),
    "fused inner chooses": (
        [stage("a", next="b", route_fn="pkg.r"), stage("b", **END)],
        {"fused_stages": [["a", "b"]]},
        "stage 'a' must route only to 'b'",
    ),
    "fused inner ends": (
        [stage("a", **END), stage("b", **END)],
        {"fused_stages": [["a", "b"]]},
        "stage 'a' must route only to 'b'",
    ),
    "fused fan-in": (
        [stage("a", next="b"), stage("b", wait_for=["a"], merge_fn="pkg.m", **END)],
        {"fused_stages": [["a", "b"]]},
        "cannot include fan-in stage 'b'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_is_refused(case: str) -> None:
    stages, fields, text = BROKEN[case]
    with pytest.raises(ValidationError, match=text):
        pipeline(*stages, **fields)


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
        stage("a", next="b"), stage("b", next="c"), stage("c", **END), fused_stages=[["a", "b"], ["b", "c"]]
    )
    assert config.fused_stages == [["a", "b"], ["b", "c"]]


def test_fused_stages_of_the_legacy_form_route_when_they_run() -> None:
    config = PipelineConfig(stages=[legacy("a"), legacy("b")], fused_stages=[["a", "b"]])
    assert config.is_legacy


def test_the_first_stage_of_a_fused_group_may_fan_in() -> None:
    pipeline(
        stage("a", next="b"),
        stage("b", wait_for=["a"], merge_fn="pkg.m", next="c"),
        stage("c", **END),
        fused_stages=[["b", "c"]],
    )


def test_assignments_are_checked_on_demand() -> None:
    config = pipeline(stage("a", next="b"), stage("b", **END))
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
        pipeline(stage("a", num_replicas=2, node=node, **END))
    pipeline(stage("a", num_replicas=2, node=["x", None], **END))


def test_a_terminal_stage_that_no_request_reaches_is_named() -> None:
    # Nothing leads to "c" and "d" but they themselves.
    lost = [stage("a", next="b"), stage("b", **END), stage("c", next="d"), stage("d", **END)]
    text = "stage 'd' is terminal, and no route from the entry stage 'a' leads to it"
    with pytest.raises(ConfigError, match=text):
        validate_config(pipeline(*lost))
    with pytest.raises(ValueError, match=text):
        compile_pipeline(pipeline(*lost))
    with pytest.raises(ConfigError, match="stage 'a' is terminal, and no route from the entry stage 'b'"):
        validate_config(pipeline(stage("a", **END), stage("b", **END), entry_stage="b"))
    # A stream leads there, too.
    streamed = stage("a", next="b", stream_to=["c"])
    check_terminals(pipeline(streamed, *lost[1:]))
    # Another field decides.
    check_terminals(pipeline(*lost, terminal_stages_fn="pkg.who_answers"))


def test_no_stage_waits_for_a_payload_that_none_sends() -> None:
    merged = {"merge_fn": "pkg.m", "wait_for": ["a", "b"]}
    stages = [stage("a", next="c"), stage("b", next="d", stream_to=["c"])]
    waiting = [*stages, stage("c", next="d", **merged), stage("d", **END)]
    with pytest.raises(
        ConfigError,
        match=r"stage 'c': wait_for names 'b', which sends it no payload, .*'next' of 'b', or leave",
    ):
        validate_config(pipeline(*waiting))
    with pytest.raises(ValueError, match="wait_for names 'b'"):
        compile_pipeline(pipeline(*waiting))
    # Another field decides.
    check_inputs(pipeline(*stages, stage("c", next="d", wait_for_fn="pkg.w", **merged), stage("d", **END)))
    routed = legacy("a")
    handler = {"type": "aggregated", "sources": ["a"], "merge_fn": "pkg.m"}
    check_inputs(pipeline(routed, legacy("b", input_handler=handler)))
