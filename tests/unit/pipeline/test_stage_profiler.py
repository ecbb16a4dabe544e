"""Profiles by message: what is recorded, where it goes, and what is said where there is none."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from stage_harness import harness
from waiting import until

from sglang_omni.pipeline.stage.profiler import StageProfiler
from sglang_omni.proto import ProfilerStartMessage, ProfilerStopMessage, StagePayload
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sglang_omni")


async def started(profiler: StageProfiler) -> None:
    """The first start in a process loads libraries, which takes a while."""
    assert profiler._profile is not None
    await asyncio.wait_for(asyncio.wrap_future(profiler._profile), 120)


async def test_a_trace_shows_what_the_scheduler_computed(tmp_path: Path) -> None:
    import torch

    def compute(payload: StagePayload) -> Any:
        payload.data = float(torch.ones(4).cumsum(0)[-1])
        return payload

    async with harness(scheduler=SimpleScheduler(compute)) as one:
        template = str(tmp_path / "{run_id}" / "{stage}.json")
        one.stage._control(ProfilerStartMessage("run", template))
        await started(one.stage._profiler)
        one.submit("r")
        await until(lambda: bool(one.control_plane.completed))
        one.control_plane.work.put_nowait(ProfilerStopMessage("another"))  # Not the one that runs.
        one.control_plane.work.put_nowait(ProfilerStopMessage("run"))
        await until(lambda: StageProfiler._running is None)
    names = {e.get("name") for e in json.loads((tmp_path / "run" / "s.json").read_text())["traceEvents"]}
    assert "aten::cumsum" in names


async def test_a_stage_that_ends_writes_its_profile(tmp_path: Path) -> None:
    import torch  # noqa: F401

    async with harness() as one:
        one.control_plane.work.put_nowait(ProfilerStartMessage("run", str(tmp_path / "{stage}.json")))
        await until(lambda: StageProfiler._running is not None)
    assert (tmp_path / "s.json").exists()
    assert StageProfiler._running is None


async def test_without_torch_the_log_says_so_and_the_stage_serves_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness() as one:
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "torch", raising=False)
            one.stage._control(ProfilerStartMessage("run", "/nowhere/{stage}"))
        assert "Stage s: no profile 'run', since torch is not loaded in its process" in caplog.text
        one.control_plane.work.put_nowait(ProfilerStopMessage())
        await one.still_works()


async def test_activities_that_the_process_lacks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    profiler = StageProfiler("a")
    profiler.start(ProfilerStartMessage("run", str(tmp_path / "{stage}"), ["GPU"]))
    await started(profiler)
    await profiler.finish()
    assert "there is no GPU to profile in this process" in caplog.text
    assert list(tmp_path.iterdir()) == []


async def test_a_process_has_one_profile_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import torch  # noqa: F401

    first, second = StageProfiler("a"), StageProfiler("b")
    first.start(ProfilerStartMessage("one", str(tmp_path / "{stage}")))
    second.start(ProfilerStartMessage("two", str(tmp_path / "{stage}")))
    assert "Stage b: no profile 'two': profile 'one' of stage a is running in this process" in caplog.text
    await second.finish()
    await first.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


async def test_a_path_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import torch  # noqa: F401

    (tmp_path / "file").touch()
    profiler = StageProfiler("a")
    profiler.start(ProfilerStartMessage("one", str(tmp_path / "file" / "{stage}")))
    await profiler.finish()
    assert "Stage a: cannot write profile 'one'" in caplog.text
