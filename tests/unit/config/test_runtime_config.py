"""From config to runtime: endpoints, the sockets' folder, relay options, and who shares what with whom."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_omni.config import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from sglang_omni.pipeline.processes.plan import (
    allocate_endpoints,
    build_relay_configs,
    prepare_pipeline_runtime,
)
from sglang_omni.pipeline.processes.run_dir import IpcRuntimeDir, create_ipc_runtime_dir, join_ipc_runtime_dir


def pipeline(base: Path | None = None, stages: list[StageConfig] | None = None, **fields) -> PipelineConfig:
    if base is not None:
        fields["endpoints"] = EndpointsConfig(base_path=str(base))
    stages = stages or [
        StageConfig(name="first", factory="pkg.make", process="p", next="second"),
        StageConfig(name="second", factory="pkg.make", process="q", terminal=True),
    ]
    return PipelineConfig(model_path="models/Some-Model_1", stages=stages, **fields)


def test_a_runtime_dir_that_cannot_be_locked_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no lock is never swept."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fcntl, "flock", full)
    with pytest.raises(OSError, match="No space"):
        create_ipc_runtime_dir(pipeline(tmp_path))
    assert not list(tmp_path.iterdir())


def test_runtime_dir_is_private_named_after_the_pipeline_and_removed_by_close(short_path: Path) -> None:
    runtime_dir = create_ipc_runtime_dir(pipeline(short_path))
    assert runtime_dir.path.parent == short_path
    assert runtime_dir.path.name.startswith("some-model-1-")
    assert stat.S_IMODE(runtime_dir.path.stat().st_mode) == 0o700
    runtime_dir.close()
    runtime_dir.close()
    assert list(short_path.iterdir()) == []


def test_two_runs_get_folders_of_their_own_and_neither_removes_the_others(tmp_path: Path) -> None:
    with create_ipc_runtime_dir(pipeline(tmp_path)) as one, create_ipc_runtime_dir(pipeline(tmp_path)) as two:
        assert one.path != two.path
        assert one.path.is_dir()
        assert two.path.is_dir()


def test_the_folder_of_a_killed_run_is_swept_and_other_folders_are_not(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig\n"
        "from sglang_omni.pipeline.runtime_config import create_ipc_runtime_dir\n"
        "stage = StageConfig(name='a', factory='pkg.make', process='p', terminal=True)\n"
        "endpoints = EndpointsConfig(base_path=sys.argv[1])\n"
        "config = PipelineConfig(model_path='m', stages=[stage], endpoints=endpoints)\n"
        "print(create_ipc_runtime_dir(config).path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    left_behind = Path(killed.stdout.strip())
    assert left_behind.is_dir(), killed.stderr
    foreign = tmp_path / "not-ours"
    foreign.mkdir()
    with create_ipc_runtime_dir(pipeline(tmp_path)):
        assert not left_behind.exists()
        assert foreign.is_dir()


def test_a_folder_that_is_joined_goes_with_the_last_of_its_processes(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    one, two = join_ipc_runtime_dir(config, "run"), join_ipc_runtime_dir(config, "run")
    assert one.path == two.path == tmp_path / "run"
    assert stat.S_IMODE(one.path.stat().st_mode) == 0o700
    one.close()
    with create_ipc_runtime_dir(config):  # sweeps
        assert two.path.is_dir()
    two.close()
    assert list(tmp_path.iterdir()) == []
    # What a killed process left behind is taken over, or swept by the next run.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.lock").touch()
    with join_ipc_runtime_dir(config, "other"):
        assert [folder.name for folder in tmp_path.iterdir()] == ["other"]


def test_default_base_folder_goes_with_the_last_run(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    one, two = create_ipc_runtime_dir(pipeline()), create_ipc_runtime_dir(pipeline())
    base = one.path.parent
    assert base.parent == short_path
    assert stat.S_IMODE(base.stat().st_mode) == 0o700
    one.close()
    assert two.path.is_dir()
    two.close()
    assert not base.exists()


def test_default_base_folder_open_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    base = Path(EndpointsConfig().base_path)
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(PermissionError, match=r"endpoints\.base_path"):
        create_ipc_runtime_dir(pipeline())


def test_the_lock_is_not_passed_on_to_child_processes(tmp_path: Path) -> None:
    runtime_dir = create_ipc_runtime_dir(pipeline(tmp_path))
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        path = runtime_dir.path
        os.close(runtime_dir._lock_fd)
        fd = os.open(path / "run.lock", os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
    finally:
        child.kill()
        child.wait()


def test_endpoints_have_fixed_keys_and_lie_in_the_folder(tmp_path: Path) -> None:
    endpoints = allocate_endpoints(stages=pipeline().stages, ipc_base_dir=tmp_path)
    assert endpoints == {
        "completion": f"ipc://{tmp_path}/completion.sock",
        "abort": f"ipc://{tmp_path}/abort.sock",
        "stage_first": f"ipc://{tmp_path}/stage_first.sock",
        "stage_second": f"ipc://{tmp_path}/stage_second.sock",
    }


def test_socket_paths_longer_than_a_unix_socket_allows_are_refused(tmp_path: Path) -> None:
    stages = [StageConfig(name="s" * 120, factory="pkg.make", process="p", terminal=True)]
    with pytest.raises(ValueError, match=r"Shorten endpoints\.base_path or the stages' names"):
        allocate_endpoints(stages=stages, ipc_base_dir=tmp_path)
    with pytest.raises(ValueError, match="Unix socket"):
        create_ipc_runtime_dir(pipeline(tmp_path, stages))
    assert list(tmp_path.iterdir()) == []


def test_a_long_pipeline_name_is_cut_to_fit(tmp_path: Path) -> None:
    config = pipeline(tmp_path, name="n" * 200)
    with create_ipc_runtime_dir(config) as runtime_dir:
        allocate_endpoints(stages=config.stages, ipc_base_dir=runtime_dir.path)
        assert runtime_dir.path.name.startswith("nn")


def test_preparation_resolves_plans_endpoints_and_entry(tmp_path: Path) -> None:
    plan = prepare_pipeline_runtime(pipeline(tmp_path))
    with plan.runtime_dir:
        assert [stage.name for stage in plan.stages_cfg] == ["first", "second"]
        assert plan.name_map == {"first": "first", "second": "second"}
        assert plan.entry_stage == "first"
        assert plan.endpoints["stage_first"].startswith(f"ipc://{plan.runtime_dir.path}/")
        assert plan.process_plan.stage_to_process == {"first": "p", "second": "q"}
        assert plan.placement_plan.stages == {}


def test_preparation_uses_a_given_folder_and_leaves_closing_it_to_its_owner(tmp_path: Path) -> None:
    given = IpcRuntimeDir(tmp_path / "run")
    given.path.mkdir()
    plan = prepare_pipeline_runtime(pipeline(tmp_path), ipc_runtime_dir=given)
    assert plan.runtime_dir is given
    assert plan.endpoints["abort"] == f"ipc://{tmp_path}/run/abort.sock"


def test_a_config_that_cannot_run_leaves_nothing_on_disk(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    config.stages[0].process = config.stages[1].process = "p"
    config.stages[0].gpu, config.stages[1].gpu = 0, 1
    with pytest.raises(ValueError, match="spans multiple GPUs"):
        prepare_pipeline_runtime(config)
    assert list(tmp_path.iterdir()) == []


def test_tcp_endpoints_count_from_the_base_port_or_are_free_ones(tmp_path: Path) -> None:
    config = pipeline()
    config.endpoints = EndpointsConfig(scheme="tcp", base_path=str(tmp_path), base_port=16000)
    with (plan := prepare_pipeline_runtime(config)).runtime_dir:
        assert plan.endpoints == {
            "completion": "tcp://127.0.0.1:16000",
            "abort": "tcp://127.0.0.1:16001",
            "stage_first": "tcp://127.0.0.1:16002",
            "stage_second": "tcp://127.0.0.1:16003",
        }
    config.endpoints.base_port = None
    with (plan := prepare_pipeline_runtime(config)).runtime_dir:
        ports = {int(endpoint.rpartition(":")[2]) for endpoint in plan.endpoints.values()}
        assert len(ports) == 4
        # Others get none of them, however long the stages load their models.
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
    for port in ports:
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("backend", "gpu", "relay", "device"),
    [
        ("shm", None, None, "cpu"),
        ("shm", 3, None, "cpu"),
        ("nccl", 3, None, "cuda:3"),
        ("nccl", None, None, "cpu"),
        ("nccl", 3, RelayConfig(device="cpu"), "cpu"),
    ],
)
def test_relay_device_follows_the_placement_unless_the_stage_says(
    backend: str, gpu: int | None, relay: RelayConfig | None, device: str
) -> None:
    config = pipeline(relay_backend=backend)
    config.stages[1].relay = relay
    options = build_relay_configs(config, config.stages[1], [backend], gpu)[backend]
    assert options["device"] == device
    assert (options["rank"], options["world_size"]) == (1, 2)


def test_a_backends_own_options_come_from_the_stage() -> None:
    config = pipeline(relay_backend="mooncake")
    config.stages[1].relay = RelayConfig(credits=3, backend_options={"protocol": "rdma"})
    options = build_relay_configs(config, config.stages[1], ["mooncake"], None)["mooncake"]
    assert (options["protocol"], options["credits"]) == ("rdma", 3)
