"""What the processes of a plan are told: their stages, their neighbours, their environment."""

from __future__ import annotations

import pickle
import socket
from pathlib import Path

import pytest

from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.environment import get_stage_process_env, process_environment, with_port
from sglang_omni.pipeline.processes.plan import prepare_pipeline_runtime
from sglang_omni.pipeline.specs import ProcessSpec, StageLaunchConfig
from sglang_omni.pipeline.stage.build import as_scheduler
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler


def plan(folder: Path, *stages: StageConfig, **fields) -> dict[str, ProcessSpec]:
    config = PipelineConfig(
        model_path="m", stages=list(stages), endpoints=EndpointsConfig(base_path=str(folder)), **fields
    )
    made = prepare_pipeline_runtime(config)
    with made.runtime_dir:
        return {spec.process_name: spec for spec in made.process_specs()}


def stage(name: str, process: str, **fields) -> StageConfig:
    if not {"next", "terminal"} & fields.keys():
        fields["terminal"] = True
    return StageConfig(name=name, factory="pkg.make", process=process, **fields)


def test_one_spec_for_each_process_with_its_stages_in_order(tmp_path: Path) -> None:
    specs = plan(tmp_path, stage("a", "p", next="b"), stage("b", "q", next="c"), stage("c", "p"))
    assert {name: spec.instances for name, spec in specs.items()} == {"p": ["a", "c"], "q": ["b"]}
    assert pickle.loads(pickle.dumps(specs)) == specs


def test_targets_in_the_same_process_are_known_and_others_are_not(tmp_path: Path) -> None:
    specs = plan(
        tmp_path,
        stage("a", "p", next=["b", "c"], stream_to=["d"]),
        stage("b", "p"),
        stage("c", "q"),
        stage("d", "p"),
    )
    assert specs["p"].stages[0].same_process_targets == {"b", "d"}
    assert specs["q"].stages[0].same_process_targets == set()


def test_fused_stages_share_a_process_whatever_theirs_is_called(tmp_path: Path) -> None:
    specs = plan(tmp_path, stage("a", "p", next="b"), stage("b", "q"), fused_stages=[["a", "b"]])
    assert {name: spec.instances for name, spec in specs.items()} == {"p": ["a", "b"]}
    assert specs["p"].stages[0].same_process_targets == {"b"}


def test_stream_targets_on_the_same_gpu_in_another_process_are_known(tmp_path: Path) -> None:
    half = {"resources": {"total_gpu_memory_fraction": 0.3}}
    specs = plan(
        tmp_path,
        stage("a", "p", gpu=1, runtime=half, next="near", stream_to=["near", "same", "other", "cpu"]),
        stage("near", "p", gpu=1, runtime=half),
        stage("same", "q", gpu=1, runtime=half),
        stage("other", "r", gpu=2, runtime=half),
        stage("cpu", "s"),
    )
    source = specs["p"].stages[0]
    assert source.gpu_id == 1
    assert source.same_gpu_targets == {"same"}
    assert specs["s"].stages[0].gpu_id is None


def test_a_stage_without_a_gpu_shares_none(tmp_path: Path) -> None:
    specs = plan(tmp_path, stage("a", "p", next="b", stream_to=["b"]), stage("b", "q", gpu=0))
    assert specs["p"].stages[0].same_gpu_targets == set()


def test_payloads_are_lent_on_a_gpu_without_a_stream(tmp_path: Path) -> None:
    half = {"resources": {"total_gpu_memory_fraction": 0.5}}
    specs = plan(
        tmp_path, stage("a", "p", gpu=0, runtime=half, next="b"), stage("b", "q", gpu=0, runtime=half)
    )
    assert specs["p"].stages[0].same_gpu_targets == {"b"}


def test_each_rank_of_a_stage_has_a_process_and_the_first_has_its_io(tmp_path: Path) -> None:
    specs = plan(
        tmp_path,
        stage("in", "p", next="big", stream_to=["big"]),
        stage("big", "q", gpu=[2, 3], tp_size=2, next="out"),
        stage("out", "p"),
    )
    assert list(specs) == ["p", "q_tp0", "q_tp1"]
    first, second = specs["q_tp0"].stages[0], specs["q_tp1"].stages[0]
    assert [(s.role, s.tp_rank, s.tp_size, s.gpu_id) for s in (first, second)] == [
        ("leader", 0, 2, 2),
        ("follower", 1, 2, 3),
    ]
    # Each process sees its own GPU alone, and counts it as the first.
    assert (first.device_index, second.device_index) == (0, 0)
    assert first.tp_address == second.tp_address
    assert first.tp_address is not None
    assert first.tp_address.endswith("/ranks_big.sock")
    assert specs["p"].stages[0].same_process_targets == set()
    assert pickle.loads(pickle.dumps(specs)) == specs


def test_the_ranks_of_a_stage_share_a_port_of_their_own(tmp_path: Path) -> None:
    specs = plan(tmp_path, stage("a", "a", tp_size=2), stage("b", "b", tp_size=2))
    (a, of_a), (b, of_b) = (with_port([specs[f"{name}_tp0"], specs[f"{name}_tp1"]]) for name in "ab")
    with of_a, of_b:
        ports = [spec.stages[0].nccl_port for spec in (*a, *b)]
        assert ports == [of.getsockname()[1] for of in (of_a, of_a, of_b, of_b)]
        # It is left to whoever binds it by its number, as they do.
        with socket.create_server(("127.0.0.1", of_a.getsockname()[1])):
            pass


def test_a_rank_on_the_cpu_sees_what_it_would_see_anyway() -> None:
    spec = StageLaunchConfig("big", tp_rank=1, tp_size=2)
    assert (get_stage_process_env(spec, {}), spec.device_index) == ({}, None)


def test_factory_arguments_are_merged_before_any_process_starts(tmp_path: Path) -> None:
    specs = plan(
        tmp_path,
        stage("a", "p", factory_args={"x": 1, "deep": {"k": 1, "l": 2}}),
        runtime_overrides={"a": {"deep": {"k": 3}}},
    )
    assert specs["p"].stages[0].factory_args == {"x": 1, "deep": {"k": 3, "l": 2}}


@pytest.mark.parametrize(
    ("visible", "gpu_id", "device"),
    [(None, 3, "3"), ("4, 5,6", 1, "5"), ("GPU-a,GPU-b", 0, "GPU-a"), ("MIG-a, MIG-b", 1, "MIG-b")],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_process_sees_its_own_device_alone(
    visible: str | None, gpu_id: int, device: str, ranks: int
) -> None:
    spec = StageLaunchConfig("big", tp_rank=ranks - 1, tp_size=ranks, gpu_id=gpu_id)
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    reported = get_stage_process_env(spec, env)
    assert (reported["CUDA_VISIBLE_DEVICES"], spec.device_index) == (device, 0)
    assert reported["SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS"] == "true"
    assert ("SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK" in reported) == (ranks > 1)


@pytest.mark.parametrize("visible", ["0,1", "", "0,1,-1,2"])
def test_a_device_that_is_not_visible_is_refused(visible: str) -> None:
    for ranks, which in ((1, ""), (2, " of rank 1")):
        spec = StageLaunchConfig("big", tp_rank=ranks - 1, tp_size=ranks, gpu_id=2)
        message = f"stage 'big': gpu 2{which} is not among CUDA_VISIBLE_DEVICES='{visible}'"
        with pytest.raises(ValueError, match=f"^{message}$"):
            get_stage_process_env(spec, {"CUDA_VISIBLE_DEVICES": visible})


def test_processes_on_no_gpu_or_all_keep_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert get_stage_process_env(StageLaunchConfig("one")) == {}
    assert get_stage_process_env(StageLaunchConfig("one", gpu_id=0, all_gpus=True)) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"factory_args": {"device": "cuda:1"}},
        {"factory_args": {"gpu_id": 1}},
        {"relay": {"device": "cuda:1"}},
    ],
)
def test_a_process_whose_config_names_a_gpu_by_its_number_sees_all(tmp_path: Path, fields: dict) -> None:
    specs = plan(
        tmp_path,
        stage("a", "p", gpu=1, next="b"),
        stage("b", "p", **fields, next="c"),
        stage("c", "q", gpu=2),
    )
    assert [it.device_index for it in (*specs["p"].stages, *specs["q"].stages)] == [1, None, 0]
    assert [it.all_gpus for it in specs["p"].stages] == [True, True]
    assert process_environment(specs["p"], {}) == {}


def test_the_users_word_on_the_balance_of_memory_holds() -> None:
    name = "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"
    spec = StageLaunchConfig("big", tp_size=2, gpu_id=0)
    assert [get_stage_process_env(spec, env)[name] for env in ({}, {name: "1"})] == ["0", "1"]


def test_defaults_lie_under_the_environment(tmp_path: Path) -> None:
    spec = plan(tmp_path, stage("a", "p"), env_defaults={"SET": "default", "UNSET": "default"})["p"]
    assert process_environment(spec, {"SET": "user"}) == {"SET": "user", "UNSET": "default"}


def test_a_function_becomes_a_scheduler_whose_results_are_payloads() -> None:
    scheduler = as_scheduler(lambda payload: payload.data * 2, stage="s", factory="pkg.make")
    assert isinstance(scheduler, SimpleScheduler)
    payload = StagePayload("r", OmniRequest("x"), 21)
    doubled = scheduler._compute(payload)
    assert doubled == StagePayload("r", OmniRequest("x"), 42)
    assert payload.data == 21


def test_schedulers_are_taken_as_they_are() -> None:
    scheduler = SimpleScheduler(lambda payload: payload)
    assert as_scheduler(scheduler, stage="s", factory="pkg.make") is scheduler


def test_what_no_stage_can_run_is_refused_with_stage_and_factory() -> None:
    with pytest.raises(TypeError, match=r"stage 's': factory 'pkg.make' returned a NoneType"):
        as_scheduler(None, stage="s", factory="pkg.make")
