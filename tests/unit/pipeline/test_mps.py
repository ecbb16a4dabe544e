"""MPS: when its daemon is started, for which processes, and what happens if it cannot be had.

The daemon is a script of these tests, the driver that reaches it theirs too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine, gpu_uuid, slice_uuid
from fake_mps import FakeMps

from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.gpus import CUSTOM_ALL_REDUCE
from sglang_omni.pipeline.processes import environment, local, mps
from sglang_omni.pipeline.processes.mps import MpsError
from sglang_omni.pipeline.processes.plan import RunPlan, prepare_pipeline_runtime
from sglang_omni.pipeline.processes.run_dir import create_ipc_runtime_dir
from sglang_omni.pipeline.specs import ProcessSpec


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMps:
    return FakeMps(tmp_path, monkeypatch)


def pipeline(folder: Path, *gpus: Any, factory: str = "os.getcwd", **fields: Any) -> PipelineConfig:
    """A chain of stages, each in a process of its own."""
    share = {"resources": {"total_gpu_memory_fraction": 0.2}}
    names = [f"s{number}" for number in range(len(gpus))]
    stages = [
        StageConfig(
            **{"name": name, "factory": factory, "process": name, **fields},
            **({} if gpu is None else {"gpu": gpu, "runtime": share}),
            **({"next": after} if after else {"terminal": True}),
        )
        for name, gpu, after in zip(names, gpus, [*names[1:], None], strict=True)
    ]
    return PipelineConfig(model_path="m", stages=stages, endpoints=EndpointsConfig(base_path=str(folder)))


@pytest.fixture
def planned(short_path: Path) -> Any:
    """``planned(0, 0, None)``: the processes of a run of stages on these GPUs."""
    plans: list[RunPlan] = []

    def make(*gpus: Any, **fields: Any) -> list[ProcessSpec]:
        plans.append(prepare_pipeline_runtime(pipeline(short_path, *gpus, **fields)))
        return plans[-1].process_specs()

    yield make
    for plan in plans:
        plan.runtime_dir.close()


async def test_processes_that_share_a_gpu_have_a_daemon_while_they_run(
    fake_machine: FakeMachine, control: FakeMps, planned: Callable[..., list[ProcessSpec]]
) -> None:
    fake_machine.has(8, "6,5,4")
    control.install()
    specs = planned(1, 1, 2, None)
    daemon = await mps.start_mps("auto", specs)
    assert daemon is not None
    assert control.calls == [f"start {gpu_uuid(5)},{gpu_uuid(4)}", "get_server_list"]
    folder = Path(specs[0].runtime_dir) / "mps"
    *on_gpus, on_cpu = [daemon.environment_of(spec) for spec in specs]
    assert on_cpu == {}
    assert [reported["CUDA_VISIBLE_DEVICES"] for reported in on_gpus] == [
        gpu_uuid(5),
        gpu_uuid(5),
        gpu_uuid(4),
    ]
    for reported in on_gpus:
        assert reported["CUDA_MPS_PIPE_DIRECTORY"] == str(folder)
        assert reported["CUDA_MPS_LOG_DIRECTORY"] == str(folder / "log")
    await daemon.close()
    assert control.calls[-1] == "quit"
    assert not (folder / "control").exists()


async def test_ranks_that_are_reported_uuids_use_no_all_reduce_that_reads_numbers(
    fake_machine: FakeMachine, control: FakeMps, planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_machine.has(2)
    control.install()
    monkeypatch.setattr(environment, "linked_by_nvlink", lambda uuids: True)
    specs = planned([0, 1], [0, 1], tp_size=2)
    launcher = local.LocalLauncher("auto")
    ranks = specs[:2]
    assert {env[CUSTOM_ALL_REDUCE] for env in launcher.environments(ranks)} == {"1"}
    await launcher.start(specs)
    try:
        reported = launcher.environments(ranks)
    finally:
        await launcher.close()
    assert [env["CUDA_VISIBLE_DEVICES"] for env in reported] == [gpu_uuid(0), gpu_uuid(1)]
    assert {env[CUSTOM_ALL_REDUCE] for env in reported} == {"0"}


@pytest.mark.parametrize(
    ("mode", "gpus", "starts"),
    [
        ("auto", (0, 1), False),
        ("auto", (0, None), False),
        ("auto", (None, None), False),
        ("on", (0, 1), True),
        ("on", (None,), False),
        ("off", (0, 0), False),
    ],
)
async def test_it_is_started_if_it_is_of_use(
    fake_machine: FakeMachine, control: FakeMps, planned: Any, mode: Any, gpus: Any, starts: bool
) -> None:
    fake_machine.has(2)
    control.install()
    daemon = await mps.start_mps(mode, planned(*gpus))
    assert (daemon is not None, bool(control.calls)) == (starts, starts)
    if daemon is not None:
        await daemon.close()


async def test_a_machine_without_gpus_needs_none(
    fake_machine: FakeMachine, control: FakeMps, planned: Any
) -> None:
    control.install()
    assert await mps.start_mps("on", planned(0, 0)) is None
    assert control.calls == []


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The folder of a daemon that the server did not start: named by the environment, or the default one."""
    folder = tmp_path / ("theirs" if request.param == "environment" else "elsewhere")
    folder.mkdir()
    if request.param == "environment":
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder))
    return folder


@pytest.mark.parametrize("theirs", ["environment", "default"], indirect=True)
async def test_a_daemon_that_runs_already_is_used_and_left_alone(
    fake_machine: FakeMachine, control: FakeMps, planned: Any, theirs: Path
) -> None:
    fake_machine.has(1)
    control.install()
    (theirs / "control").touch()
    assert await mps.start_mps("auto", planned(0, 0)) is None
    assert control.calls == ["get_server_list"]


@pytest.mark.parametrize("theirs", ["environment", "default"], indirect=True)
@pytest.mark.parametrize(
    ("left", "reason"),
    [
        ("exit 1", "nvidia-cuda-mps-control failed with status 1: no output"),
        ("exec sleep 60", "no answer in 1 s"),
        ("exit 0", "a process on a GPU did not reach it"),
    ],
)
async def test_another_is_started_if_one_that_was_left_does_not_answer(
    fake_machine: FakeMachine,
    control: FakeMps,
    planned: Any,
    theirs: Path,
    left: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake_machine.has(1)
    control.install()
    (theirs / "control").write_text(left)
    if "sleep" in left:
        monkeypatch.setattr(mps, "_ANSWER_S", 1.0)
    specs = planned(0, 0)
    daemon = await mps.start_mps("auto", specs)
    assert daemon is not None
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == f"The MPS daemon of {theirs} cannot be used, so another one is started: {reason}"
    pipes = daemon.environment_of(specs[0])["CUDA_MPS_PIPE_DIRECTORY"]
    assert Path(pipes).is_relative_to(specs[0].runtime_dir)
    await daemon.close()


async def test_without_the_program_a_daemon_is_believed(
    fake_machine: FakeMachine, control: FakeMps, planned: Any, tmp_path: Path
) -> None:
    fake_machine.has(1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/control").touch()
    assert await mps.start_mps("on", planned(0, 0)) is None


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("absent", "nvidia-cuda-mps-control is not installed"),
        ("echo no permission; exit 3", "nvidia-cuda-mps-control failed with status 3: no permission"),
        ("exit 0", "a process on a GPU did not reach it"),
        ("slices", "the GPU is a MIG slice"),
        ("sleep 60", "it is not up after 0.2 s"),
    ],
)
async def test_without_it_processes_take_turns_and_a_line_says_why(
    fake_machine: FakeMachine,
    control: FakeMps,
    planned: Any,
    fault: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if fault == "slices":
        fake_machine.has(1, slice_uuid(0, 0), slices=2)
    else:
        fake_machine.has(1)
    if fault != "absent":
        control.install(":" if fault == "slices" else fault)
    if fault.startswith("sleep"):
        monkeypatch.setattr(mps, "_START_S", 0.2)
    assert await mps.start_mps("auto", planned(0, 0)) is None
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == f"Processes that share a GPU take turns on it, without MPS: {text} (--mps off)"
    with pytest.raises(MpsError, match=f"^--mps on: {text}$"):
        await mps.start_mps("on", planned(0, 0))


async def test_a_process_that_the_daemon_fails_means_none(
    fake_machine: FakeMachine, control: FakeMps, planned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fake_machine.has(1)
    control.install()
    specs = planned(0, 0)
    fake_machine.has(1, total_bytes=1)
    os.environ["FAKE_GPU_FAULT"] = "805"
    try:
        assert await mps.start_mps("auto", specs) is None
    finally:
        del os.environ["FAKE_GPU_FAULT"]
    assert "cuDevicePrimaryCtxRetain: CUDA error 805" in caplog.text
    assert control.calls[-1] == "quit"


async def test_a_killed_runs_daemon_is_ended_by_the_next_run(
    fake_machine: FakeMachine, control: FakeMps, planned: Any, short_path: Path
) -> None:
    fake_machine.has(1)
    control.install()
    specs = planned(0, 0)
    assert await mps.start_mps("auto", specs) is not None
    killed = Path(specs[0].runtime_dir)
    # The kernel lets go of a killed process's lock.
    (killed / "run.lock").unlink()
    (killed / "run.lock").touch()
    create_ipc_runtime_dir(pipeline(short_path, 0)).close()
    assert control.calls[-1] == "quit"
    assert not killed.exists()
