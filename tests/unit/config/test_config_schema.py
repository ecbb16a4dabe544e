"""Fields, their types, and what an assignment does."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from edge_pipelines import legacy
from pydantic import ValidationError

from sglang_omni.config import (
    EndpointsConfig,
    ExecutorConfig,
    InputHandlerConfig,
    ParallelismConfig,
    PipelineConfig,
    PlacementConfig,
    RelayConfig,
    SGLangServerArgsConfig,
    StageConfig,
    StageResourceConfig,
    StageRuntimeConfig,
)


def stage(name: str = "a", **fields: object) -> StageConfig:
    return StageConfig(**{"name": name, "factory": "pkg.make", "process": "main", "terminal": True, **fields})


class TwoStages(PipelineConfig):
    model_path: str = "shipped"
    stages: list[StageConfig] = [  # noqa: RUF012
        StageConfig(name="first", factory="pkg.make", process="main", next="second"),
        StageConfig(name="second", factory="pkg.make", process="main", terminal=True),
    ]


def test_defaults() -> None:
    only = stage()
    assert (only.tp_size, only.num_workers, only.stream_to, only.relay) == (1, 1, [], None)
    relay = RelayConfig()
    assert (relay.slot_size_mb, relay.credits, relay.device) == (512, 2, "cpu")
    assert relay.rank is relay.world_size is None
    config = PipelineConfig(model_path="some/model", stages=[only])
    assert config.name == "some/model"
    assert config.relay_backend == "shm"
    assert config.resolved_entry_stage == "a"
    assert config.terminal_stages == ["a"]
    endpoints = config.endpoints
    assert (endpoints.scheme, endpoints.host, endpoints.base_port) == ("ipc", "127.0.0.1", None)
    assert config.placement.max_total_gpu_memory_fraction_per_gpu == 1.0
    assert config.placement.require_memory_fraction_for_colocation


def test_endpoints_default_to_the_users_runtime_folder(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert EndpointsConfig().base_path == str(tmp_path / "sglang_omni")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert str(tmp_path) not in EndpointsConfig().base_path


def test_derived_views_of_the_graph() -> None:
    config = PipelineConfig(
        model_path="m",
        entry_stage="b",
        stages=[
            stage("a", terminal=False, next=["b", "c"]),
            stage("b", gpu=2),
            stage("c", process=None, tp_size=2, gpu=[0, 1]),
        ],
    )
    assert config.resolved_entry_stage == "b"
    assert config.terminal_stages == ["b", "c"]
    assert config.gpu_placement == {"b": 2, "c": [0, 1]}
    assert config.stage("a").next_stages == ["b", "c"]
    assert config.stage("b").gpu_ids == [2]
    with pytest.raises(KeyError):
        config.stage("d")


def test_a_subclass_ships_stages_that_instances_do_not_share() -> None:
    one, other = TwoStages(), TwoStages()
    one.stages[0].factory_args["size"] = 3
    one.stages[1].gpu = 1
    assert other.stages[0].factory_args == {}
    assert other.stages[1].gpu is None
    assert one.name == "shipped"


def test_config_cls_is_filled_in_by_itself() -> None:
    assert PipelineConfig(model_path="m", stages=[stage()]).config_cls == "PipelineConfig"
    assert TwoStages(config_cls="anything").config_cls == f"{__name__}.TwoStages"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: stage(fatory_args={}), "stage 'a': StageConfig has no field 'fatory_args' .*'factory_args'"),
        (
            lambda: stage(relay={"slots_mb": 1}),
            "stage 'a': relay: RelayConfig has no field 'slots_mb' .*'slot_size_mb'",
        ),
        (lambda: stage(runtime={"resources": {"fraction": 1}}), "stage 'a': runtime.resources: .*'fraction'"),
        (lambda: stage(tp_size="two"), "stage 'a': tp_size: Input should be a valid integer"),
        (lambda: stage(tp_size=0), "stage 'a': tp_size: .*greater than or equal to 1"),
        (lambda: stage(num_workers=0), "stage 'a': num_workers: .*greater than or equal to 1"),
        (lambda: stage(stream_to="b"), "stage 'a': stream_to: Input should be a valid list"),
        (lambda: stage(name=""), "name: .*at least 1 character"),
        (lambda: stage(name="x/y"), "stage 'x/y': name must not"),
        (lambda: stage(name="coordinator"), "stage 'coordinator': name must not"),
        (lambda: stage(process="  "), "stage 'a': process must not be empty"),
        (lambda: stage(process="p@r1"), "stage 'a': process 'p@r1' must not contain '@'"),
        (
            lambda: PipelineConfig(model_path="m", stage=[stage()]),
            "PipelineConfig has no field 'stage' .*'stages'",
        ),
        (
            lambda: PipelineConfig(model_path="m", stages=[stage()], zzzz=1),
            "no field 'zzzz' .*valid names: .*'stages'",
        ),
        (lambda: RelayConfig(device="gpu"), "device must be 'cpu', 'cuda' or 'cuda:N', got 'gpu'"),
        (lambda: RelayConfig(credits=0), "credits"),
        (lambda: RelayConfig(slot_size_mb=-1), "slot_size_mb"),
        (lambda: EndpointsConfig(scheme="http"), "scheme"),
        (lambda: EndpointsConfig(base_port=70000), "base_port"),
        (lambda: StageResourceConfig(total_gpu_memory_fraction=0.0), "total_gpu_memory_fraction"),
        (lambda: StageResourceConfig(total_gpu_memory_fraction=1.1), "total_gpu_memory_fraction"),
        (lambda: SGLangServerArgsConfig(mem_fraction_static=0), "mem_fraction_static"),
        (lambda: SGLangServerArgsConfig(mem_fraction_static=1.5), "mem_fraction_static"),
        (lambda: StageRuntimeConfig(max_seq_len=0), "max_seq_len"),
        (lambda: StageRuntimeConfig(video_fps=-1.0), "video_fps"),
        (
            lambda: PlacementConfig(max_total_gpu_memory_fraction_per_gpu=1.1),
            "max_total_gpu_memory_fraction_per_gpu",
        ),
        (lambda: InputHandlerConfig(type="aggregated", sources=["a"]), "needs both 'sources' and 'merge_fn'"),
        (lambda: InputHandlerConfig(type="merged"), "type"),
        (lambda: ExecutorConfig(factory=""), "factory"),
    ],
)
def test_a_bad_field_is_refused_by_name(make, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        make()


def test_an_unknown_field_keeps_pydantics_error_type_and_location() -> None:
    with pytest.raises(ValidationError) as caught:
        PipelineConfig(
            model_path="m",
            stages=[{"name": "a", "factory": "f.f", "process": "p", "terminal": True, "relay": {"slot": 1}}],
        )
    (error,) = caught.value.errors()
    assert error["type"] == "extra_forbidden"
    assert error["loc"] == ("stages", 0, "relay")


def test_every_problem_of_a_stage_is_reported() -> None:
    with pytest.raises(ValidationError) as caught:
        stage(tp_size="x", terminal="maybe")
    assert [error["loc"] for error in caught.value.errors()] == [("terminal",), ("tp_size",)]


def test_fractions_reach_one() -> None:
    assert StageResourceConfig(total_gpu_memory_fraction=1.0).total_gpu_memory_fraction == 1.0
    assert SGLangServerArgsConfig(mem_fraction_static=1.0).mem_fraction_static == 1.0


def test_tp_size_and_parallelism_are_one_fact() -> None:
    assert stage(tp_size=2).parallelism.tp == 2
    assert stage(parallelism=ParallelismConfig(tp=3)).tp_size == 3
    assert stage(tp_size=2, parallelism=ParallelismConfig(tp=2)).tp_size == 2
    with pytest.raises(ValueError, match=r"stage 'a': tp_size=2 conflicts with parallelism\.tp=3"):
        stage(tp_size=2, parallelism=ParallelismConfig(tp=3))


def test_assigning_one_spelling_assigns_the_other() -> None:
    it = stage()
    it.tp_size = 2
    assert it.parallelism.tp == 2
    it.parallelism = ParallelismConfig(tp=4)
    assert it.tp_size == 4


def test_fields_are_assignable_and_the_name_of_a_process_is_trimmed() -> None:
    it = stage(process=" main ")
    assert it.process == "main"
    it.gpu = 3
    it.factory_args = {"x": 1}
    it.runtime.max_seq_len = 5
    assert (it.gpu_ids, it.factory_args, it.runtime.max_seq_len) == ([3], {"x": 1}, 5)
    with pytest.raises(ValueError, match="gpus"):
        it.gpus = 3


def test_numbers_in_env_defaults_become_strings() -> None:
    config = PipelineConfig(model_path="m", stages=[stage()], env_defaults={"OMP_NUM_THREADS": 8, "A": "b"})
    assert config.env_defaults == {"OMP_NUM_THREADS": "8", "A": "b"}
    with pytest.raises(ValidationError, match="env_defaults"):
        PipelineConfig(model_path="m", stages=[stage()], env_defaults={"A": True})


def test_legacy_form_needs_no_process_next_terminal_or_model_path() -> None:
    collected = InputHandlerConfig(type="aggregated", sources=["a"], merge_fn="pkg.merge")
    config = PipelineConfig(name="legacy", stages=[legacy("a"), legacy("b", input_handler=collected)])
    assert config.is_legacy
    assert config.resolved_entry_stage == "a"
    assert config.terminal_stages == []


def test_legacy_form_lists_terminal_stages_and_gpus_beside_the_stages() -> None:
    config = PipelineConfig(
        model_path="m",
        entry_stage="a",
        terminal_stages=["b"],
        gpu_placement={"b": 1},
        stages=[legacy("a"), legacy("b")],
    )
    assert config.terminal_stages == ["b"]
    assert config.gpu_placement == {"b": 1}
    with pytest.raises(ValidationError, match="terminal_stages has unknown stages: \\['c'\\]"):
        PipelineConfig(terminal_stages=["c"], stages=[legacy("a")])


def test_configs_travel_to_other_processes() -> None:
    config = TwoStages(runtime_overrides={"first": {"x": 1}})
    config.stages[0].tp_size = 2
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert copy.stages[0].parallelism.tp == 2


def test_importing_config_is_light() -> None:
    code = (
        "import sys, sglang_omni.config\n"
        "heavy = ('torch', 'numpy', 'zmq', 'sglang_omni.pipeline', 'sglang_omni.relay')\n"
        "print(*(m for m in heavy if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_unknown_names_of_the_package_are_attribute_errors() -> None:
    import sglang_omni.config

    with pytest.raises(AttributeError, match="no attribute 'compile_pipelin'"):
        _ = sglang_omni.config.compile_pipelin
