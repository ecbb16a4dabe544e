"""Which GPU each process of a pipeline and of a fleet sees, for machines with GPUs of every kind of name."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_machine import FakeMachine, gpu_uuid, slice_uuid

from sglang_omni import gpus, launch_server
from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.config.draw.report import resolve_config
from sglang_omni.config.plan.pipeline import PipelinePlan, plan_pipeline
from sglang_omni.engines.options import EngineOptions, TensorParallel
from sglang_omni.engines.sglang.settings import server_args
from sglang_omni.gpus import (
    CUSTOM_ALL_REDUCE,
    linked_by_nvlink,
    listed_devices,
    nvlink_pairs,
    only_first,
    visible_devices,
    visible_gpus,
)
from sglang_omni.models.omni.pipelines import place_on_gpus
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.pipeline.processes.environment import process_environment, refuse_missing_gpus
from sglang_omni.pipeline.processes.local import LocalLauncher
from sglang_omni.pipeline.processes.plan import plan_run
from sglang_omni.pipeline.specs import ProcessSpec
from sglang_omni.relay.shm.cuda_driver import cuda_driver
from sglang_omni.serve.launch.fleet import gpus_of_replicas


def specs_of(config: PipelineConfig, folder: Path) -> list[ProcessSpec]:
    config.endpoints = EndpointsConfig(base_path=str(folder))
    plan = plan_run(plan_pipeline(config))
    with plan.runtime_dir:
        return plan.process_specs()


def seen(config: PipelineConfig, folder: Path) -> dict[str, tuple[str | None, set[int | None]]]:
    """Process -> the GPUs that it sees, and the indices by which its stages know theirs."""
    return {
        spec.process_name: (
            process_environment(spec, os.environ).get("CUDA_VISIBLE_DEVICES"),
            {stage.device_index for stage in spec.stages},
        )
        for spec in specs_of(config, folder)
    }


def qwen3_omni(layout: str) -> PipelineConfig:
    """Qwen3-Omni's stages in a documented layout."""
    config = Qwen3OmniPipelineConfig(model_path="m")
    place_on_gpus(config, [0])
    config.placement.require_memory_fraction_for_colocation = False
    if layout in ("talker on another", "split"):
        for name in ("talker", "code2wav"):
            config.stage(name).gpu = 1
    if layout == "split":
        thinker = config.stage("thinker")
        thinker.tp_size, thinker.gpu, thinker.parallelism.tp = 2, [0, 1], 2
    if layout == "three talkers":
        talker = config.stage("talker")
        talker.num_replicas, talker.gpu = 3, [1, 2, 3]
    return config


def text_model(gpu: Any = 0, **fields: Any) -> PipelineConfig:
    stages = [
        StageConfig(name="preprocess", factory="os.getcwd", process="io", next="thinker"),
        StageConfig(name="thinker", factory="os.getcwd", process="thinker", gpu=gpu, next="decode", **fields),
        StageConfig(name="decode", factory="os.getcwd", process="io", terminal=True),
    ]
    return PipelineConfig(model_path="m", stages=stages)


NUMBERS = None
UUIDS = ",".join(gpu_uuid(gpu) for gpu in (5, 4, 1, 0))
SLICES = ",".join(slice_uuid(gpu, number) for gpu, number in ((1, 1), (0, 0), (1, 0), (0, 1)))

ON_ONE = {"encoders": 0, "thinker": 0, "talker": 0, "code2wav": 0}
LAYOUTS: Mapping[str, dict[str, int]] = {
    "one": ON_ONE,
    "talker on another": ON_ONE | {"talker": 1, "code2wav": 1},
    "split": {"encoders": 0, "thinker_tp0": 0, "thinker_tp1": 1, "talker": 1, "code2wav": 1},
    "three talkers": {
        **{"encoders": 0, "thinker": 0, "code2wav": 0},
        **{f"talker@r{number}": number + 1 for number in range(3)},
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("visible", [NUMBERS, "7,3,5,1", UUIDS, SLICES], ids=["all", "some", "uuids", "mig"])
def test_each_process_of_a_layout_sees_its_gpu_alone(
    fake_machine: FakeMachine, tmp_path: Path, layout: str, visible: str | None
) -> None:
    fake_machine.has(8, visible, slices=2 if visible == SLICES else 0)
    names = visible.split(",") if visible else [str(gpu) for gpu in range(8)]
    expected = {process: (names[gpu], {0}) for process, gpu in LAYOUTS[layout].items()}
    found = seen(qwen3_omni(layout), tmp_path)
    assert found.pop("io") == (visible, {None})
    assert found == expected


@pytest.mark.parametrize(("layout", "count"), [("one", 1), ("talker on another", 2), ("split", 2)])
def test_a_layout_starts_on_the_smallest_machine_that_has_its_gpus(
    fake_machine: FakeMachine, tmp_path: Path, layout: str, count: int
) -> None:
    fake_machine.has(count)
    found = seen(qwen3_omni(layout), tmp_path)
    del found["io"]
    assert {process: visible for process, (visible, _) in found.items()} == {
        process: str(gpu) for process, gpu in LAYOUTS[layout].items()
    }
    refuse_missing_gpus(specs_of(qwen3_omni(layout), tmp_path), count)
    with pytest.raises(ValueError, match=f"gpu {count} is not there"):
        refuse_missing_gpus(specs_of(text_model(count), tmp_path), count)


def test_ranks_and_replicas_of_a_text_model(fake_machine: FakeMachine, tmp_path: Path) -> None:
    fake_machine.has(8)
    assert seen(text_model([2, 5], tp_size=2), tmp_path) == {
        "io": (None, {None}),
        "thinker_tp0": ("2", {0}),
        "thinker_tp1": ("5", {0}),
    }
    replicated = seen(text_model([6, 2, 1], num_replicas=3), tmp_path)
    assert [replicated[f"thinker@r{number}"][0] for number in range(3)] == ["6", "2", "1"]


def test_config_resolve_shows_the_gpu_as_a_factory_is_reported_it() -> None:
    def reported(config: PipelineConfig) -> list[Any]:
        stages = resolve_config(config)["stages"].values()
        return [stage["factory_args"].get("gpu_id") for stage in stages]

    takes_it = f"{__name__}.load"
    config = text_model(3)
    for stage in config.stages:
        stage.factory = takes_it
    assert reported(config) == [None, 0, None]
    config.stage("thinker").factory_args = {"gpu_id": 2}
    config.stage("decode").process, config.stage("decode").gpu = "thinker", 3
    assert reported(config) == [None, 2, 3]


async def test_a_gpu_that_is_not_there_is_refused_before_anything_starts(
    fake_machine: FakeMachine, tmp_path: Path
) -> None:
    specs = specs_of(text_model([1, 0], num_replicas=2), tmp_path)
    for count, text in ((1, "1 GPU is"), (8, None), (0, None)):
        fake_machine.has(count)
        if text is None:
            await LocalLauncher("off").start(specs)
        else:
            message = rf"^stage 'thinker@r0': gpu 1 is not there: {text} visible, counted from 0$"
            with pytest.raises(ValueError, match=message):
                await LocalLauncher("off").start(specs)


def load(gpu_id: int | None = None) -> None: ...


# --- fleets ---------------------------------------------------------------------------------------------


def shares(config: PipelineConfig, size: int) -> list[str]:
    return gpus_of_replicas(plan_pipeline(config), visible_devices(), size)


@pytest.mark.parametrize(
    ("visible", "slices", "expected"),
    [
        (None, 0, [str(gpu) for gpu in range(8)]),
        ("7,6,5,4,3,2,1,0", 0, list("76543210")),
        (",".join(map(gpu_uuid, range(8))), 0, [*map(gpu_uuid, range(8))]),
        (
            ",".join(slice_uuid(gpu, number) for gpu in range(4) for number in range(2)),
            2,
            [slice_uuid(gpu, number) for gpu in range(4) for number in range(2)],
        ),
    ],
    ids=["all", "some", "uuids", "mig"],
)
def test_eight_replicas_on_eight_gpus_have_one_each(
    fake_machine: FakeMachine, visible: str | None, slices: int, expected: list[str]
) -> None:
    fake_machine.has(8, visible, slices=slices)
    assert shares(text_model(), 8) == shares(qwen3_omni("one"), 8) == expected
    pairs = [",".join(expected[at : at + 2]) for at in range(0, 8, 2)]
    assert shares(qwen3_omni("split"), 4) == shares(qwen3_omni("talker on another"), 4) == pairs
    # What is left over is shared as well.
    assert shares(text_model(), 4) == pairs


@pytest.mark.parametrize(
    ("gpus_there", "layout", "size", "text"),
    [
        (8, "split", 8, "--dp-size 8 with 2 GPUs each needs 16 GPUs; 8 are visible"),
        (1, "one", 2, "--dp-size 2 with 1 GPU each needs 2 GPUs; 1 is visible"),
        (2, "three talkers", 2, "--dp-size 2 with 4 GPUs each needs 8 GPUs; 2 are visible"),
    ],
)
def test_replicas_that_do_not_fit_are_refused_with_the_numbers(
    fake_machine: FakeMachine, gpus_there: int, layout: str, size: int, text: str
) -> None:
    fake_machine.has(gpus_there)
    with pytest.raises(ValueError, match=f"^{text}$"):
        shares(qwen3_omni(layout), size)


def test_replicas_on_a_cpu_have_the_fleets_environment(fake_machine: FakeMachine) -> None:
    assert shares(text_model(), 2) == []
    fake_machine.has(2)
    assert shares(text_model(None), 4) == []


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each fleet that would have been run."""
    found: list[Any] = []

    async def run_fleet(options: Any) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr("sglang_omni.serve.launch.fleet.run_fleet", run_fleet)
    return found


def test_a_fleet_counts_what_a_replica_will_see(
    fake_machine: FakeMachine, launched: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pipeline that spreads over the GPUs it sees takes no more of them for seeing the whole machine."""

    def on_the_last(*_: Any) -> PipelinePlan:
        return plan_pipeline(text_model(len(visible_gpus()) - 1))

    monkeypatch.setattr(launch_server, "_plan", on_the_last)
    fake_machine.has(8)
    assert launch_server.main(["--dp-size", "4", "--mps", "off"]) == 0
    assert list(launched[0].gpus) == ["0,1", "2,3", "4,5", "6,7"]
    assert list(launched[0].replica_args)[-2:] == ["--mps", "off"]


def test_the_gpus_of_a_replica_reach_its_process(
    fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_omni.serve.launch import fleet

    options = fleet.FleetOptions(2, "127.0.0.1", 0, [], {}, 1.0, 1.0, gpus=["0,1", "2,3"])
    members = [fleet._replica(index, 1, options, "key") for index in range(2)]
    assert [member.environment["CUDA_VISIBLE_DEVICES"] for member in members if member.environment] == [
        "0,1",
        "2,3",
    ]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (plain,) = [fleet._replica(0, 1, fleet.FleetOptions(1, "127.0.0.1", 0, [], {}, 1.0, 1.0), "key")]
    assert plain.environment is not None
    assert "CUDA_VISIBLE_DEVICES" not in plain.environment


# --- what GPUs there are --------------------------------------------------------------------------------


def test_gpus_are_those_that_cuda_would_show(fake_machine: FakeMachine) -> None:
    assert (visible_gpus(), visible_devices()) == ([], [])
    fake_machine.has(4, "2,1,-1,0", capability="8.6", total_bytes=24 << 30, name="NVIDIA A10")
    assert [(gpu.index, gpu.uuid) for gpu in visible_gpus()] == [(0, gpu_uuid(2)), (1, gpu_uuid(1))]
    assert visible_devices() == ["2", "1"]
    assert (visible_gpus()[0].capability, visible_gpus()[0].total_bytes) == ((8, 6), 24 << 30)
    with only_first(1):
        assert [gpu.uuid for gpu in visible_gpus()] == [gpu_uuid(2)]
    fake_machine.has(1, SLICES, slices=2)
    assert visible_devices() == []  # the first of them is of a GPU that this machine has not
    fake_machine.has(2, SLICES, slices=2)
    (only,) = visible_gpus()
    assert (only.uuid, only.name) == (slice_uuid(1, 1), "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert visible_devices() == SLICES.split(",")


def test_a_context_is_its_threads(fake_machine: FakeMachine) -> None:
    def current() -> int | None:
        context = ctypes.c_void_p()
        assert driver._lib.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    fake_machine.has(2)
    driver = cuda_driver()
    with driver.on(1), ThreadPoolExecutor(1) as other:
        assert current() is not None
        assert other.submit(current).result() is None
    assert current() is None


def test_the_list_ends_at_what_is_no_device() -> None:
    assert listed_devices({}) is None
    for value, devices in (("", []), ("0, 1", ["0", "1"]), ("1,-1,0", ["1"]), ("NoDevFiles", ["NoDevFiles"])):
        assert listed_devices({"CUDA_VISIBLE_DEVICES": value}) == devices


# --- SGLang's all-reduce --------------------------------------------------------------------------------


class NvmlError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVML of a machine whose GPUs 0 to 3 have NVLink."""

    def handle(uuid: str) -> int:
        if not uuid.startswith("GPU-"):
            raise NvmlError("Not Supported")
        return int(uuid[-12:], 16)

    module = SimpleNamespace(
        NVMLError=NvmlError,
        NVML_P2P_CAPS_INDEX_NVLINK=2,
        NVML_P2P_STATUS_OK=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetP2PStatus=lambda one, other, _: 0 if max(one, other) < 4 else 5,
    )
    monkeypatch.setattr(gpus, "import_module", {"pynvml": module}.__getitem__)
    return module


@pytest.mark.parametrize(
    ("visible", "gpu", "linked"),
    [
        (None, [0, 1], "1"),
        (None, [0, 4], "0"),
        ("6,2,3", [1, 2], "1"),
        ("6,2,3", [0, 1], "0"),
        # SGLang reads numbers alone there.
        (UUIDS, [2, 3], "0"),
    ],
)
def test_ranks_use_sglangs_all_reduce_over_nvlink_alone(
    fake_machine: FakeMachine,
    nvml: SimpleNamespace,
    tmp_path: Path,
    visible: str | None,
    gpu: list[int],
    linked: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_machine.has(8, visible)
    ranks = specs_of(text_model(gpu, tp_size=2), tmp_path)[1:]
    launcher = LocalLauncher("off")
    assert [env[CUSTOM_ALL_REDUCE] for env in launcher.environments(ranks)] == [linked, linked]
    monkeypatch.setenv(CUSTOM_ALL_REDUCE, "1")
    assert [env[CUSTOM_ALL_REDUCE] for env in launcher.environments(ranks)] == ["1", "1"]


@pytest.mark.parametrize(
    ("device", "said", "disabled"),
    [("cuda:0", "1", False), ("cuda:0", "0", True), ("cuda:0", None, True), ("cpu", "1", True)],
)
def test_sglang_is_reported(
    monkeypatch: pytest.MonkeyPatch, device: str, said: str | None, disabled: bool
) -> None:
    given: dict[str, Any] = {}
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("sglang.srt.server_args")
    setattr(module, "ServerArgs", lambda **fields: given.update(fields))  # noqa: B010
    monkeypatch.setitem(sys.modules, module.__name__, module)
    if said is None:
        monkeypatch.delenv(CUSTOM_ALL_REDUCE, raising=False)
    else:
        monkeypatch.setenv(CUSTOM_ALL_REDUCE, said)
    server_args(Path("m"), EngineOptions(device=device, tp=TensorParallel(0, 2, 1)), "auto")
    assert given["disable_custom_all_reduce"] is disabled


def test_what_is_no_group_on_gpus_needs_no_all_reduce(
    fake_machine: FakeMachine, nvml: SimpleNamespace, tmp_path: Path
) -> None:
    fake_machine.has(2)
    for config in (text_model(), text_model(None, tp_size=2)):
        environments = LocalLauncher("off").environments(specs_of(config, tmp_path)[1:])
        assert all(CUSTOM_ALL_REDUCE not in env for env in environments)


def test_without_word_of_nvlink_there_is_none(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert linked_by_nvlink([gpu_uuid(0), gpu_uuid(1)])
    assert nvlink_pairs([gpu_uuid(0), gpu_uuid(5), gpu_uuid(1)]) == [(0, 2)]
    assert not linked_by_nvlink([slice_uuid(0, 0), slice_uuid(0, 1)])
    assert "NVML does not report it" in caplog.text

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(gpus, "import_module", missing)
    assert not linked_by_nvlink([gpu_uuid(0), gpu_uuid(1)])
    assert "nvidia-ml-py is not installed" in caplog.text


def test_what_other_programs_have_is_asked_of_nvml(
    nvml: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    free = {0: 81_000 << 20, 1: 79_500 << 20, 2: 90_000 << 20}
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(free=free[handle])
    found = [
        gpus.Gpu(index, gpu_uuid(index), "NVIDIA H100", 81_000 << 20, (9, 0)) for index in range(len(free))
    ]
    assert [gpu.used_bytes for gpu in gpus.with_use(found)] == [0, 1500 << 20, 0]
    with gpus.assuming(found):
        assert gpus.with_use(found) == found
    nvml.nvmlInit = lambda: nvml.nvmlDeviceGetHandleByUUID("")
    assert gpus.with_use(found) == found
    assert "GPUs count as unused by other programs: NVML does not report it" in caplog.text


def test_a_checkpoint_is_placed_on_the_gpus_that_are_there(
    fake_machine: FakeMachine, launched: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line, with a checkpoint of which nothing but its description is there."""
    from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint

    make_tiny_checkpoint(tmp_path / "model", seed=0)
    fake_machine.has(8)
    assert launch_server.main([str(tmp_path / "model"), "--dp-size", "8"]) == 0
    assert list(launched[0].gpus) == list("01234567")
    assert launch_server.main([str(tmp_path / "model"), "--dp-size", "4", "--tp-size", "2"]) == 0
    assert list(launched.pop().gpus) == ["0,1", "2,3", "4,5", "6,7"]
    fake_machine.has(0)
    assert launch_server.main([str(tmp_path / "model"), "--dp-size", "8"]) == 0
    assert list(launched[1].gpus) == []
    fake_machine.has(2)
    assert launch_server.main([str(tmp_path / "model"), "--dp-size", "8"]) == 1
    assert "needs 8 GPUs; 2 are visible" in capsys.readouterr().err
