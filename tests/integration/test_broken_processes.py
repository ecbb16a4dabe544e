"""Processes that hang, fail every request, or cannot be started again: found, said, ended, replaced."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from pathlib import Path

import httpx
import pytest
from processes import is_running
from test_mp_runner import chain, running
from waiting import PATIENCE, until

from sglang_omni.client import Client
from sglang_omni.config import WatchdogConfig
from sglang_omni.pipeline.processes.hosts.agent import HostAgent
from sglang_omni.pipeline.processes.hosts.launcher import HostsLauncher
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.proto import Unavailable
from sglang_omni.serve import create_app

# Long enough for a machine that is busy with other things, short enough for a test.
IMPATIENT = WatchdogConfig(heartbeat_timeout=6.0, unhealthy_after=3.0)


async def health(runner: MultiProcessPipelineRunner) -> tuple[int, dict]:
    transport = httpx.ASGITransport(create_app(Client(runner.coordinator)))
    async with httpx.AsyncClient(transport=transport, base_url="http://pipeline") as http:
        answer = await http.get("/health")
    return answer.status_code, answer.json()


async def healthy(runner: MultiProcessPipelineRunner, status: int) -> dict:
    """What ``/health`` says once it answers with this status."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found, said = await health(runner)
            if found == status:
                return said
            await asyncio.sleep(0.1)


async def test_a_stopped_process_is_said_to_hang_and_replaced(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a", "b", "c", watchdog=IMPATIENT)) as runner:
        elsewhere = asyncio.create_task(runner.coordinator.submit("elsewhere", {"hold": "c"}))
        await until((tmp_path / "c.held").exists)
        await until(lambda: "b" in runner.coordinator.timings("elsewhere"))
        before = runner.process_ids
        os.kill(before["b"], signal.SIGSTOP)
        held = asyncio.create_task(runner.coordinator.submit("held", {}))
        said = await healthy(runner, 503)
        assert said["status"] == "unhealthy"
        assert "b" in said["hung_stages"]
        assert "has not answered for" in said["hung_stages"]["b"]
        assert not held.done()
        with pytest.raises(Unavailable, match=r"stage 'b': process 'b' has not answered .* is stopped"):
            await asyncio.wait_for(held, PATIENCE)
        assert not elsewhere.done()
        (tmp_path / "c.go").touch()
        assert (await asyncio.wait_for(elsewhere, PATIENCE))["seen"] == before
        after = (await asyncio.wait_for(runner.coordinator.submit("next", {}), PATIENCE))["seen"]
        assert after["b"] != before["b"]
        assert (after["a"], after["c"]) == (before["a"], before["c"])
        assert (await healthy(runner, 200))["status"] == "healthy"


async def test_a_c_call_that_keeps_the_interpreters_lock_is_ended_with_its_stack(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running(chain(tmp_path, "a", factory="holds_the_lock", watchdog=IMPATIENT)) as runner:
        before = runner.process_ids["a"]
        with pytest.raises(Unavailable, match="has not answered for"):
            await asyncio.wait_for(runner.coordinator.submit("hangs", None), PATIENCE)
        assert await asyncio.wait_for(runner.coordinator.submit("next", None), PATIENCE) != before
    assert 'process_factories.py", line' in capfd.readouterr().err


async def test_a_process_on_another_host_that_is_stopped_is_replaced_there(tmp_path: Path) -> None:
    config = chain(tmp_path, "a", watchdog=IMPATIENT)
    config.stages[0].node = "b"
    key = RunKeys.generate()
    launcher = HostsLauncher("127.0.0.1", 0, key)
    runner = MultiProcessPipelineRunner(config, launcher=launcher)
    start = asyncio.create_task(runner.start(PATIENCE))
    await until(lambda: launcher.is_listening)
    host = asyncio.create_task(HostAgent(launcher.endpoint, "b", key).run())
    try:
        await start
        before = runner.process_ids["a"]
        os.kill(before, signal.SIGSTOP)
        assert "is stopped" in (await healthy(runner, 503))["hung_stages"]["a"]
        result = await asyncio.wait_for(runner.coordinator.submit("waits", {}), PATIENCE)
        assert result["seen"]["a"] == runner.process_ids["a"] != before
    finally:
        await runner.stop()
        host.cancel()
        await asyncio.wait({host})


async def test_a_process_that_goes_on_in_time_is_kept(tmp_path: Path) -> None:
    config = chain(tmp_path, "a", watchdog=WatchdogConfig(unhealthy_after=2.0))
    async with running(config) as runner:
        before = runner.process_ids
        os.kill(before["a"], signal.SIGSTOP)
        await healthy(runner, 503)
        waits = asyncio.create_task(runner.coordinator.submit("waits", {}))
        os.kill(before["a"], signal.SIGCONT)
        assert (await healthy(runner, 200))["hung_stages"] == {}
        assert (await asyncio.wait_for(waits, PATIENCE))["seen"] == before


async def test_a_step_that_lasts_too_long_ends_its_process_and_its_request_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = chain(tmp_path, "a", "b", watchdog=WatchdogConfig(step_timeout=2.0))
    async with running(config) as runner:
        before = runner.process_ids
        elsewhere = asyncio.create_task(runner.coordinator.submit("elsewhere", {}))
        await elsewhere
        with pytest.raises(Unavailable, match=r"'b' has been in one step for \d"):
            await asyncio.wait_for(runner.coordinator.submit("slow", {"hold": "b"}), PATIENCE)
        after = (await asyncio.wait_for(runner.coordinator.submit("next", {}), PATIENCE))["seen"]
        assert (after["a"], after["b"] == before["b"]) == (before["a"], False)
    # Where it hung: the stacks of its threads.
    assert 'process_factories.py", line' in capfd.readouterr().err


async def test_a_process_that_fails_every_request_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_omni.pipeline.processes.watchdog.FAILING_S", 1.0)
    config = chain(tmp_path, "a", factory="broken_for_good", watchdog=WatchdogConfig(max_failed_steps=3))
    async with running(config) as runner:
        before = await runner.coordinator.submit("fine", None)
        (tmp_path / "sticky").touch()
        with pytest.raises(RuntimeError, match="the device is gone"):
            await runner.coordinator.submit("breaks", None)
        (tmp_path / "sticky").unlink()

        async def replaced() -> bool:
            try:
                return await runner.coordinator.submit("again", None) != before
            except RuntimeError:
                return False

        async with asyncio.timeout(PATIENCE):
            while not await replaced():
                await asyncio.sleep(0.1)


async def test_a_process_whose_gpu_is_lost_ends_with_its_requests_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = chain(tmp_path, "a", "b", "c")
    config.stages[1].factory = "process_factories.loses_its_gpu"
    async with running(config) as runner:
        elsewhere = asyncio.create_task(runner.coordinator.submit("elsewhere", {"hold": "c"}))
        await until((tmp_path / "c.held").exists)
        await until(lambda: "b" in runner.coordinator.timings("elsewhere"))
        before = runner.process_ids
        with pytest.raises(RuntimeError, match="the stage's own error"):
            await asyncio.wait_for(runner.coordinator.submit("ordinary", {"raise": "b"}), PATIENCE)
        with pytest.raises(
            Unavailable, match=r"stage 'b'.*(GPU is lost to this process|exited with status 1)"
        ):
            await asyncio.wait_for(runner.coordinator.submit("loses it", {"lose": "b"}), PATIENCE)
        (tmp_path / "c.go").touch()
        assert (await asyncio.wait_for(elsewhere, PATIENCE))["seen"] == before
        await until(lambda: runner.process_ids["b"] != before["b"])
        after = (await asyncio.wait_for(runner.coordinator.submit("next", {}), PATIENCE))["seen"]
        assert (after["a"], after["b"] == before["b"], after["c"]) == (before["a"], False, before["c"])
    assert "must be started again: CUDA error: an illegal memory access" in capfd.readouterr().err


@pytest.mark.parametrize("why", ["refused by the stage itself", "one request only"])
async def test_what_is_a_requests_own_fault_ends_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("sglang_omni.pipeline.processes.watchdog.FAILING_S", 0.0)
    config = chain(tmp_path, "a", watchdog=WatchdogConfig(max_failed_steps=3))
    async with running(config) as runner:
        before = runner.process_ids
        for number in range(6):
            asked = {"refuse": "a"} if why.startswith("refused") else {"raise": "a"}
            name = f"r{number}" if why.startswith("refused") else "same"
            with pytest.raises((ValueError, RuntimeError)):
                await runner.coordinator.submit(name, asked)
            if name == "same":
                await runner.coordinator.submit(f"fine{number}", {})
        await asyncio.sleep(2.5)  # two heartbeats, which would tell
        assert (await runner.coordinator.submit("last", {}))["seen"] == before


async def test_a_child_that_outlives_its_stage_delays_no_request(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a", "b", factory="forking")) as runner:
        try:
            before = runner.process_ids
            await asyncio.wait_for(runner.coordinator.submit("forks", {"fork": True}), PATIENCE)
            await until((tmp_path / "child").exists)
            for name in ("a", "b"):
                os.kill(before[name], signal.SIGKILL)
            await until(lambda: not set(before.values()) & set(runner.process_ids.values()))
            await until(lambda: not runner.coordinator.health()["down_stages"])
            after = await asyncio.wait_for(runner.coordinator.submit("next", {}), PATIENCE)
            assert after == runner.process_ids["b"]
            assert is_running(int((tmp_path / "child").read_text()))
        finally:
            (tmp_path / "grown").touch()


async def test_no_descriptor_for_a_restart_is_one_more_death(tmp_path: Path) -> None:
    """And not the end of the pipeline: it is tried again, and works once there are some."""
    async with running(chain(tmp_path, "a", "b")) as runner:
        before = runner.process_ids
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            # Nothing more than is open now, nor what the dead process gives back.
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            os.kill(before["b"], signal.SIGKILL)
            down = runner.coordinator.health
            await until(lambda: "Too many open files" in down()["down_stages"].get("b", ""))
            await asyncio.sleep(1.0)  # another try or two
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        after = (await asyncio.wait_for(runner.coordinator.submit("next", {}), PATIENCE))["seen"]
        assert (after["a"], after["b"] == before["b"]) == (before["a"], False)


async def test_a_restart_that_fails_while_loading_is_tried_again(tmp_path: Path) -> None:
    config = chain(tmp_path, "a", factory="broken_after", watchdog=WatchdogConfig(unhealthy_after=1.0))
    async with running(config) as runner:
        os.kill(await runner.coordinator.submit("pid", {}), signal.SIGKILL)
        said = await healthy(runner, 503)
        assert "a" in said["unserved_stages"]
        await until(lambda: "the weights are gone" in runner.coordinator.health()["down_stages"].get("a", ""))
        (tmp_path / "built").unlink()
        assert await asyncio.wait_for(runner.coordinator.submit("next", {}), PATIENCE)
        assert (await healthy(runner, 200))["status"] == "healthy"
