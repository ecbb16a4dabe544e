"""Processes of stages that are forked from one that has imported their modules."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from processes import is_running
from test_mp_runner import chain, running, stage
from waiting import until

from sglang_omni.config import EndpointsConfig, PipelineConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

_PR_GET_CHILD_SUBREAPER = 37
# A module that has opened what stands for a GPU's file.
GPU_IN_USE = """
from sglang_omni.pipeline.processes import fork_server
fork_server._GPU_FILES = __file__
opened = open(__file__)
"""
IMPORTED = "import os\nPID = os.getpid()\n"


class Preloading(PipelineConfig):
    preload: ClassVar[tuple[str, ...]] = ("numpy", "imported_once")


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the module that is imported once."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "imported_once.py"
    file.write_text(IMPORTED)
    return file


def describing(folder: Path) -> PipelineConfig:
    """Two stages in processes of their own, each of which adds what it finds itself to be."""
    return Preloading(
        model_path="m",
        stages=[
            stage("a", "describe_process", next="b"),
            stage("b", "describe_process", terminal=True),
        ],
        endpoints=EndpointsConfig(base_path=str(folder / "run")),
    )


def preloading(folder: Path) -> PipelineConfig:
    """A chain of two stages that trace requests."""
    traced = chain(folder, "a", "b")
    return Preloading(model_path="m", stages=traced.stages, endpoints=traced.endpoints)


def fork_server(runner: MultiProcessPipelineRunner) -> psutil.Process:
    """The server of a pipeline, whose command line those that it has forked have too."""
    (found,) = (
        each
        for each in psutil.Process().children()
        if each.status() != psutil.STATUS_ZOMBIE
        and "fork_server import serve" in " ".join(each.cmdline())
        and each.pid not in runner.process_ids.values()
    )
    return found


async def kill(runner: MultiProcessPipelineRunner, name: str) -> None:
    """Kill a process, and return when another one has taken its place."""
    before = runner.process_ids[name]
    os.kill(before, signal.SIGKILL)
    await until(lambda: runner.process_ids[name] != before)
    await until(lambda: not runner.coordinator.health()["down_stages"])


def children() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


async def test_processes_are_forked_with_what_was_imported_once(importable: Path, tmp_path: Path) -> None:
    config = describing(tmp_path)
    config.env_defaults = {"OF_ALL_STAGES": "yes"}
    async with running(config) as runner:
        server = fork_server(runner).pid
        processes = await runner.coordinator.submit("r", {})
        assert [each["pid"] for each in processes] == list(runner.process_ids.values())
        assert [each["imported_by"] for each in processes] == [server, server]
        assert [each["parent"] for each in processes] == [os.getpid(), os.getpid()]
        assert [each["environment"]["OF_ALL_STAGES"] for each in processes] == ["yes", "yes"]
        first, second = processes
        assert first["drawn"] != second["drawn"]
        # Nothing of the server is left open but what every process inherits.
        assert first["files"] == second["files"]
    assert not is_running(server)


async def test_each_process_has_an_environment_of_its_own(
    importable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what it lacks: a variable that this process has lost since the server was started."""
    monkeypatch.setenv("GONE_SINCE", "here")
    async with running(describing(tmp_path)) as runner:
        monkeypatch.delenv("GONE_SINCE")
        monkeypatch.setenv("NEW_SINCE", "here")
        await kill(runner, "b")
        first, second = await runner.coordinator.submit("r", {})
        assert "GONE_SINCE" in first["environment"]
        assert "NEW_SINCE" not in first["environment"]
        assert "GONE_SINCE" not in second["environment"]
        assert "NEW_SINCE" in second["environment"]


async def test_a_killed_process_is_forked_again(
    importable: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(preloading(tmp_path)) as runner:
        await kill(runner, "a")
        assert (await runner.coordinator.submit("r", {}))["seen"] == runner.process_ids
        assert psutil.Process(runner.process_ids["a"]).cmdline() == fork_server(runner).cmdline()
    assert "process 'a' was killed by SIGKILL (exit status -9)" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_processes_outlive_their_server_and_are_started_without_it(
    importable: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    async with running(preloading(tmp_path)) as runner:
        before = runner.process_ids
        os.kill(fork_server(runner).pid, number)
        assert (await runner.coordinator.submit("r", {}))["seen"] == before
        assert "as none can be forked" not in caplog.text
        await kill(runner, "a")
        assert (await runner.coordinator.submit("s", {}))["seen"] == runner.process_ids
        assert runner.process_ids["b"] == before["b"]
    assert caplog.text.count("as none can be forked") == 1


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
            "threads",
        ),
        ("raise KeyError('broken')\n", "importing imported_once failed: KeyError('broken')"),
        ("import os\nos._exit(3)\n", "it has ended"),
        (GPU_IN_USE, "the imports have begun to use a GPU"),
    ],
)
async def test_stages_start_without_a_server_that_cannot_fork(
    importable: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str, why: str
) -> None:
    importable.write_text(source)
    before = children()
    async with running(preloading(tmp_path)) as runner:
        assert (await runner.coordinator.submit("r", {}))["seen"] == runner.process_ids
        assert children() - before == set(runner.process_ids.values())
    (line,) = (record.message for record in caplog.records if "none can be forked" in record.message)
    assert why in line


async def test_one_process_needs_no_server(importable: Path, tmp_path: Path) -> None:
    traced = chain(tmp_path, "a", "b", shared="both")
    config = Preloading(model_path="m", stages=traced.stages, endpoints=traced.endpoints)
    before = children()
    async with running(config) as runner:
        assert children() - before == set(runner.process_ids.values())


async def test_no_stray_process_becomes_a_child_of_this_one(importable: Path, tmp_path: Path) -> None:
    """Only those that a server forks do, and only while it does."""
    async with running(preloading(tmp_path)):
        adopting = ctypes.c_int(-1)
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopting), 0, 0, 0)
        assert adopting.value == 0


async def test_a_start_that_fails_leaves_no_server(importable: Path, tmp_path: Path) -> None:
    config = describing(tmp_path)
    config.stages[1].factory = "process_factories.broken"
    before = children()
    with pytest.raises(RuntimeError, match="no weights in /nowhere"):
        await MultiProcessPipelineRunner(config).start(timeout=60)
    assert children() == before
