"""Pipelines in real processes: they start, fail, die, are restarted, and go."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, until

from sglang_omni.config import ConfigError, EndpointsConfig, ExecutorConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest, RequestError, Unavailable

HERE = Path(__file__).parent


def stage(name: str, factory: str, *, process: str = "", **fields) -> StageConfig:
    return StageConfig(name=name, factory=f"process_factories.{factory}", process=process or name, **fields)


def pipeline(folder: Path, *stages: StageConfig, **fields) -> PipelineConfig:
    return PipelineConfig(
        model_path="m",
        stages=list(stages),
        endpoints=EndpointsConfig(base_path=str(folder / "run")),
        **fields,
    )


def chain(
    folder: Path, *names: str, shared: str = "", factory: str = "trace", **fields: Any
) -> PipelineConfig:
    """Stages one after the other, each in a process of its own or all in ``shared``; they trace requests."""
    args = {"folder": str(folder)}
    return pipeline(
        folder,
        *(
            stage(
                name,
                factory,
                process=shared,
                factory_args={"name": name, **args} if factory == "trace" else args,
                **({"next": following} if following else {"terminal": True}),
            )
            for name, following in zip(names, [*names[1:], None], strict=True)
        ),
        **fields,
    )


@asynccontextmanager
async def running(config: PipelineConfig, **options) -> AsyncIterator[MultiProcessPipelineRunner]:
    runner = MultiProcessPipelineRunner(config, **options)
    await runner.start(timeout=60)
    try:
        yield runner
    finally:
        await runner.stop()


def is_running(pid: int) -> bool:
    """True if the process runs; a dead orphan may still be there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_each_process_of_the_plan_runs_its_stages(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a", "b", "c")) as runner:
        result = await runner.coordinator.submit("r", {"x": 1})
        assert result == {"seen": runner.process_ids}
        assert len({os.getpid(), *result["seen"].values()}) == 4


async def test_stages_of_one_process_share_it(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a", "b", shared="both")) as runner:
        result = await runner.coordinator.submit("r", {})
        assert list(runner.process_ids) == ["both"]
        assert result["seen"] == dict.fromkeys("ab", runner.process_ids["both"])


async def test_timings_are_in_the_configs_order(tmp_path: Path) -> None:
    """Also where a process has stages that are not neighbours, as the first and the last here."""
    first, *others, last = chain(tmp_path, "z", "m", "a", "y").stages
    together = [stage.model_copy(update={"process": "io"}) for stage in (first, last)]
    async with running(pipeline(tmp_path, together[0], *others, together[1])) as runner:
        await runner.coordinator.submit("r", {})
        await until(lambda: len(runner.coordinator.timings("r")) == 4)
        assert list(runner.coordinator.timings("r")) == ["z", "m", "a", "y"]
        for time in runner.coordinator.timings("r").values():
            assert time["work"] > 0.0
            assert time["wait"] >= 0.0


async def test_stop_ends_every_process_and_removes_the_sockets(tmp_path: Path) -> None:
    runner = MultiProcessPipelineRunner(chain(tmp_path, "a", "b"))
    await runner.start()
    pids = list(runner.process_ids.values())
    assert list((tmp_path / "run").iterdir())
    await runner.stop()
    await runner.stop()
    assert not any(map(is_running, pids))
    assert not list((tmp_path / "run").iterdir())
    with pytest.raises(RuntimeError, match="await start"):
        _ = runner.coordinator


async def test_stop_ends_a_process_whose_stage_does_not_leave(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a")) as runner:
        pids = list(runner.process_ids.values())
        stuck = asyncio.create_task(runner.coordinator.submit("stuck", {"hold": "a"}))
        await until((tmp_path / "a.held").exists)
    assert not any(map(is_running, pids))
    with pytest.raises(RuntimeError, match="stopped"):
        await stuck


async def test_start_raises_the_childs_traceback_and_leaves_nothing(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path, stage("ok", "asynchronous", next="bad"), stage("bad", "broken", terminal=True)
    )
    runner = MultiProcessPipelineRunner(config)
    with pytest.raises(RuntimeError) as failure:
        await runner.start(timeout=60)
    assert "Process 'bad' exited with status 1" in str(failure.value)
    assert "in broken\n" in str(failure.value)
    assert "FileNotFoundError: no weights in /nowhere" in str(failure.value)
    assert not list((tmp_path / "run").iterdir())
    assert not runner.process_ids


async def test_start_names_what_is_not_ready_in_time(tmp_path: Path) -> None:
    runner = MultiProcessPipelineRunner(pipeline(tmp_path, stage("slow", "never_ready", terminal=True)))
    with pytest.raises(TimeoutError, match=r"process 'slow' \(stages \['slow'\]\)"):
        await runner.start(timeout=1)


async def test_a_factory_that_builds_no_stage_is_named(tmp_path: Path) -> None:
    runner = MultiProcessPipelineRunner(pipeline(tmp_path, stage("odd", "wrong_product", terminal=True)))
    with pytest.raises(
        RuntimeError, match=r"stage 'odd': factory 'process_factories.wrong_product' returned a int"
    ):
        await runner.start(timeout=60)


async def test_a_config_that_cannot_run_starts_nothing(tmp_path: Path) -> None:
    runner = MultiProcessPipelineRunner(pipeline(tmp_path, stage("a", "asynchronos", terminal=True)))
    with pytest.raises(ConfigError, match=r"stage 'a': factory: .*asynchronous"):
        await runner.start()
    assert not (tmp_path / "run").exists()


async def test_what_cannot_be_sent_to_a_process_is_said_before_one_starts(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path, stage("a", "trace", factory_args={"name": "a", "folder": lambda: None}, terminal=True)
    )
    with pytest.raises(ValueError, match=r"process 'a'.*cannot be sent to another process"):
        await MultiProcessPipelineRunner(config).start()


async def test_a_factory_that_exits_is_reported(tmp_path: Path) -> None:
    runner = MultiProcessPipelineRunner(pipeline(tmp_path, stage("a", "leaves", terminal=True)))
    with pytest.raises(RuntimeError, match="SystemExit: gone before it began"):
        await runner.start(timeout=60)


async def test_errors_of_a_stages_function_name_the_stage_and_stop_nothing(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a", "b")) as runner:
        with pytest.raises(RuntimeError, match=r"stage 'b'.*the stage's own error"):
            await runner.coordinator.submit("bad", {"raise": "b"})
        with pytest.raises(RequestError, match="too loud") as refusal:
            await runner.coordinator.submit("loud", {"refuse": "b"})
        assert refusal.value.param == "volume"
        assert (await runner.coordinator.submit("good", {}))["seen"].keys() == {"a", "b"}


async def test_async_functions_and_plain_results(tmp_path: Path) -> None:
    async with running(pipeline(tmp_path, stage("up", "asynchronous", terminal=True))) as runner:
        assert await runner.coordinator.submit("r", "hello") == "HELLO"


async def test_a_killed_process_fails_its_requests_alone_and_is_restarted(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a", "b", "c")) as runner:
        elsewhere = asyncio.create_task(runner.coordinator.submit("elsewhere", {"hold": "c"}))
        # What a dead process has handed on within the last 10 ms may still count as its own.
        await until(lambda: "b" in runner.coordinator.timings("elsewhere"))
        held = asyncio.create_task(runner.coordinator.submit("held", {"hold": "b"}))
        await until((tmp_path / "b.held").exists)
        before = runner.process_ids
        os.kill(before["b"], signal.SIGKILL)
        # Unavailable: it may be tried elsewhere.
        with pytest.raises(
            Unavailable, match=r"stage 'b': process 'b' was killed by SIGKILL \(exit status -9\)"
        ):
            await asyncio.wait_for(held, PATIENCE)
        assert not elsewhere.done()
        (tmp_path / "c.go").touch()
        assert (await asyncio.wait_for(elsewhere, PATIENCE))["seen"] == before
        after = (await asyncio.wait_for(runner.coordinator.submit("next", {}), PATIENCE))["seen"]
        assert after["b"] != before["b"]
        assert (after["a"], after["c"]) == (before["a"], before["c"])


async def test_a_crashed_scheduler_ends_its_process_which_is_restarted(tmp_path: Path) -> None:
    async with running(pipeline(tmp_path, stage("a", "crashing", terminal=True))) as runner:
        before = runner.process_ids
        with pytest.raises(RuntimeError, match=r"stage 'a'.*out of KV cache"):
            await asyncio.wait_for(runner.coordinator.submit("one", {}), PATIENCE)
        with pytest.raises(RuntimeError, match=r"stage 'a'.*out of KV cache"):
            await asyncio.wait_for(runner.coordinator.submit("two", {}), PATIENCE)
        # The second may have come to the process that was just ending, and have failed before it was gone.
        await until(lambda: runner.process_ids != before)


async def test_work_goes_on_after_the_death_of_any_stage(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a", "b", "c")) as runner:
        for name in ("a", "b", "c", "a"):
            ending = f"stage '{name}': process '{name}' exited with status 7"
            with pytest.raises(RuntimeError, match=ending):
                await asyncio.wait_for(runner.coordinator.submit("dies", {"exit": name}), PATIENCE)
            result = await asyncio.wait_for(runner.coordinator.submit("lives", {}), PATIENCE)
            assert result["seen"] == runner.process_ids


async def test_a_service_managers_sigterm_is_left_to_the_parent(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a")) as runner:
        before = runner.process_ids
        held = asyncio.create_task(runner.coordinator.submit("held", {"hold": "a"}))
        await until((tmp_path / "a.held").exists)
        os.kill(before["a"], signal.SIGTERM)
        (tmp_path / "a.go").touch()
        assert (await asyncio.wait_for(held, PATIENCE))["seen"] == before


async def test_arrays_travel_before_and_after_a_restart(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path,
        stage("ones", "ones", next="twice"),
        stage("twice", "twice", next="total"),
        stage("total", "total", terminal=True),
    )
    async with running(config) as runner:
        for request_id in ("before", "after"):
            pid = runner.process_ids["twice"]
            result = await asyncio.wait_for(runner.coordinator.submit(request_id, 1 << 20), PATIENCE)
            assert result == {"total": 2.0 * (1 << 20), "pid": pid}
            if request_id == "before":
                os.kill(pid, signal.SIGKILL)
                await until(lambda pid=pid: runner.process_ids["twice"] != pid)


async def test_a_spent_restart_budget_loses_the_pipeline(tmp_path: Path) -> None:
    async with running(chain(tmp_path, "a", "b"), max_restarts=1) as runner:
        lost = asyncio.create_task(runner.wait_failed())
        with pytest.raises(RuntimeError, match="status 7"):
            await asyncio.wait_for(runner.coordinator.submit("one", {"exit": "b"}), PATIENCE)
        assert (await asyncio.wait_for(runner.coordinator.submit("two", {}), PATIENCE))["seen"].keys() == {
            "a",
            "b",
        }
        assert not lost.done()
        with pytest.raises(RuntimeError, match="status 7"):
            await asyncio.wait_for(runner.coordinator.submit("three", {"exit": "b"}), PATIENCE)
        reason = await asyncio.wait_for(lost, PATIENCE)
        assert "stage 'b': process 'b' exited with status 7; it has died 2 times" in reason
        with pytest.raises(RuntimeError, match="stage 'b': process 'b'"):
            await asyncio.wait_for(runner.coordinator.submit("four", {}), PATIENCE)


async def test_a_process_that_cannot_come_back_spends_its_budget(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path, stage("a", "broken_after", factory_args={"folder": str(tmp_path)}, terminal=True)
    )
    async with running(config, max_restarts=2) as runner:
        os.kill(await runner.coordinator.submit("pid", {}), signal.SIGKILL)
        reason = await asyncio.wait_for(runner.wait_failed(), PATIENCE)
        assert "exited with status 1: FileNotFoundError: the weights are gone; it has died 3 times" in reason


async def test_env_defaults_are_there_before_factories_and_existing_values_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_TEST_SET", "by the user")
    names = ["OMNI_TEST_SET", "OMNI_TEST_UNSET"]
    config = pipeline(
        tmp_path,
        stage("env", "environment", factory_args={"names": names}, terminal=True),
        env_defaults=dict.fromkeys(names, "default"),
    )
    async with running(config) as runner:
        assert await runner.coordinator.submit("r", {}) == {
            "OMNI_TEST_SET": "by the user",
            "OMNI_TEST_UNSET": "default",
        }
    assert "OMNI_TEST_UNSET" not in os.environ


async def test_workers_of_a_stage_take_turns_and_keep_their_sessions(tmp_path: Path) -> None:
    config = pipeline(tmp_path, stage("many", "worker_of_request", num_workers=3, terminal=True))
    async with running(config) as runner:
        free = [await runner.coordinator.submit(f"r{i}", {}) for i in range(6)]
        assert len(set(free[:3])) == 3
        assert free[:3] == free[3:]
        session = OmniRequest(inputs={}, metadata={"session_id": "s"})
        assert len({await runner.coordinator.submit(f"s{i}", session) for i in range(4)}) == 1


async def test_runtime_overrides_reach_the_factory(tmp_path: Path) -> None:
    config = chain(tmp_path, "a")
    config.runtime_overrides = {"a": {"name": "overridden"}}
    async with running(config) as runner:
        assert (await runner.coordinator.submit("r", {}))["seen"].keys() == {"overridden"}


async def test_routes_merges_and_projections_come_from_the_config(tmp_path: Path) -> None:
    paths = {
        name: f"process_factories.{name}" for name in ("route_by_request", "merge", "expected_by_request")
    }
    config = pipeline(
        tmp_path,
        stage("in", "collect", next=["left", "right"], route_fn=paths["route_by_request"]),
        stage("left", "give", factory_args={"value": "l"}, next="join"),
        stage("right", "give", factory_args={"value": "r"}, next="join"),
        stage(
            "join",
            "collect",
            wait_for=["left", "right"],
            wait_for_fn=paths["expected_by_request"],
            merge_fn=paths["merge"],
            terminal=True,
        ),
    )
    async with running(config) as runner:
        submit = runner.coordinator.submit
        assert await submit("both", OmniRequest({}, {"route": ["left", "right"]})) == {
            "left": "l",
            "right": "r",
        }
        assert await submit("one", OmniRequest({}, {"route": ["right"]})) == {"right": "r"}
        with pytest.raises(
            RuntimeError, match=r"stage 'in'.*route_fn.*outside the static topology: \['join'\]"
        ):
            await submit("outside", OmniRequest({}, {"route": "join"}))
        with pytest.raises(RuntimeError, match=r"stage 'in'.*route_fn returned no targets"):
            await submit("nowhere", OmniRequest({}, {"route": None}))


async def test_terminal_stages_are_chosen_by_the_request(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path,
        stage("in", "collect", next=["text", "audio"]),
        stage("text", "give", factory_args={"value": "t"}, terminal=True),
        stage("audio", "give", factory_args={"value": "a"}, terminal=True),
        terminal_stages_fn="process_factories.terminals_by_request",
    )
    async with running(config) as runner:
        assert await runner.coordinator.submit("both", {}) == {"text": "t", "audio": "a"}
        assert await runner.coordinator.submit("one", OmniRequest({}, {"terminals": ["audio"]})) == "a"


@pytest.mark.parametrize("process", ["", "shared"])
async def test_streams_follow_stream_to_between_processes_and_within_one(
    tmp_path: Path, process: str
) -> None:
    config = pipeline(
        tmp_path,
        stage("source", "word_source", process=process, next="sink", stream_to=["sink"]),
        stage("sink", "word_sink", process=process, can_accept_stream_before_payload=True, terminal=True),
    )
    async with running(config) as runner:
        assert await runner.coordinator.submit("r", "a stream of words") == {
            "count": 4,
            "words": "a+stream+of+words",
        }


async def test_the_earlier_form_runs_in_processes_too(tmp_path: Path) -> None:
    def earlier(name: str, factory: str, get_next: str) -> StageConfig:
        executor = ExecutorConfig(factory=f"executor_factories.{factory}")
        return StageConfig(name=name, executor=executor, get_next=f"executor_factories.{get_next}")

    config = pipeline(
        tmp_path, earlier("first", "upper", "to_second_if_long"), earlier("second", "exclaim", "end")
    )
    async with running(config) as runner:
        assert runner.process_ids.keys() == {"first", "second"}
        assert await runner.coordinator.submit("long", "abcdef") == "ABCDEF!"
        assert await runner.coordinator.submit("short", "ab") == "AB"


async def test_sockets_over_tcp(tmp_path: Path) -> None:
    config = chain(tmp_path, "a", "b")
    config.endpoints = EndpointsConfig(scheme="tcp", base_path=str(tmp_path / "run"))
    async with running(config) as runner:
        assert (await runner.coordinator.submit("r", {}))["seen"] == runner.process_ids


async def test_log_lines_name_their_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with running(
        pipeline(tmp_path, stage("talks", "logs_a_line", process="proc", terminal=True))
    ) as runner:
        assert await runner.coordinator.submit("r", {}) == "logged"
    assert re.search(r"WARNING \[proc\] process_factories: a line from a stage", capfd.readouterr().err)


SCRIPT = """
    import asyncio, signal, sys
    from pathlib import Path
    sys.path[:0] = {folders!r}
    from test_mp_runner import chain
    from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

    async def main():
        async with MultiProcessPipelineRunner(chain(Path({folder!r}), "a", "b")) as runner:
            print(*runner.process_ids.values(), flush=True)
            await runner.wait_failed()

    if __name__ == "__main__":
        # A shell may have started the tests with the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asyncio.run(main())
"""


def start_script(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    script = folder / "script.py"
    text = textwrap.dedent(SCRIPT).format(folders=[str(HERE), str(HERE.parent)], folder=str(folder))
    script.write_text(text)
    parent = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    return parent, [int(pid) for pid in parent.stdout.readline().split()]


async def test_killing_the_parent_leaves_no_orphan_and_its_folder_is_swept(tmp_path: Path) -> None:
    parent, pids = start_script(tmp_path)
    assert len(pids) == 2
    assert all(map(is_running, pids))
    parent.kill()
    parent.communicate()
    await until(lambda: not any(map(is_running, pids)))
    left_behind = list((tmp_path / "run").iterdir())
    assert left_behind
    async with running(chain(tmp_path, "a")):
        assert not any(folder.exists() for folder in left_behind)


async def test_ctrl_c_at_the_terminal_stops_everything(tmp_path: Path) -> None:
    parent, pids = start_script(tmp_path)
    assert len(pids) == 2
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=PATIENCE)
    assert "KeyboardInterrupt" in errors
    assert "[a]" not in errors
    assert "[b]" not in errors
    assert not any(map(is_running, pids))
    assert not list((tmp_path / "run").iterdir())


def test_a_script_without_a_main_guard_is_reported_so(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio
            from sglang_omni import PipelineConfig, StageConfig
            from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

            def make():
                return lambda payload: payload.data

            stage = StageConfig(name="a", factory="__main__.make", process="p", terminal=True)
            asyncio.run(MultiProcessPipelineRunner(PipelineConfig(model_path="m", stages=[stage])).start())
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert 'put the start under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]
