"""The whole pipeline in the calling process, in both forms of config."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from waiting import PATIENCE

from sglang_omni.config import (
    ExecutorConfig,
    InputHandlerConfig,
    PipelineConfig,
    PipelineRunner,
    StageConfig,
    compile_pipeline,
)
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.proto import CompleteMessage, OmniRequest, StreamMessage


def stage(name: str, factory: str, **fields) -> StageConfig:
    return StageConfig(name=name, factory=f"process_factories.{factory}", process="p", **fields)


def earlier(name: str, factory: str, get_next: str, args: dict | None = None, **fields) -> StageConfig:
    return StageConfig(
        name=name,
        executor=ExecutorConfig(factory=f"executor_factories.{factory}", args=args or {}),
        get_next=f"executor_factories.{get_next}",
        **fields,
    )


@asynccontextmanager
async def running(*stages: StageConfig, **fields) -> AsyncIterator[Coordinator]:
    coordinator, compiled = compile_pipeline(PipelineConfig(stages=list(stages), **fields))
    assert [s.name for s in compiled] == [s.name for s in stages]
    async with PipelineRunner(coordinator, compiled):
        yield coordinator


async def test_stages_run_in_this_process() -> None:
    chain = [
        stage("a", "trace", factory_args={"name": "a"}, next="b"),
        stage("b", "trace", factory_args={"name": "b"}, terminal=True),
    ]
    async with running(*chain, model_path="m") as coordinator:
        assert await coordinator.submit("r", {}) == {"seen": dict.fromkeys("ab", os.getpid())}


async def test_two_pipelines_side_by_side() -> None:
    async with (
        running(stage("a", "give", factory_args={"value": "one"}, terminal=True), model_path="m") as one,
        running(stage("a", "give", factory_args={"value": "two"}, terminal=True), model_path="m") as two,
    ):
        assert await asyncio.gather(one.submit("r", {}), two.submit("r", {})) == ["one", "two"]


async def test_a_runner_starts_and_stops_once() -> None:
    config = PipelineConfig(model_path="m", stages=[stage("a", "collect", terminal=True)])
    runner = PipelineRunner(*compile_pipeline(config))
    with pytest.raises(RuntimeError, match="not running"):
        await runner.wait()
    await runner.start()
    with pytest.raises(RuntimeError, match="running already"):
        await runner.start()
    await runner.stop()
    with pytest.raises(RuntimeError, match="not running"):
        await runner.stop()


async def test_a_crashed_stage_fails_every_request_and_the_wait() -> None:
    config = PipelineConfig(model_path="m", stages=[stage("a", "crashing", terminal=True)])
    coordinator, stages = compile_pipeline(config)
    runner = PipelineRunner(coordinator, stages)
    await runner.start()
    waiting = asyncio.create_task(runner.wait())
    try:
        for request_id in ("holds it", "comes later"):
            with pytest.raises(RuntimeError, match="out of KV cache"):
                await asyncio.wait_for(coordinator.submit(request_id, {}), PATIENCE)
        with pytest.raises(RuntimeError, match="Scheduler thread of 'a'"):
            await asyncio.wait_for(waiting, PATIENCE)
    finally:
        await runner.stop()


def test_a_factory_that_builds_no_stage_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"stage 'a': factory 'process_factories.wrong_product' returned a int"
    ):
        compile_pipeline(PipelineConfig(model_path="m", stages=[stage("a", "wrong_product", terminal=True)]))


async def test_env_defaults_are_set_for_factories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_TEST_SET", "by the user")
    monkeypatch.setenv("OMNI_TEST_UNSET", "")
    monkeypatch.delenv("OMNI_TEST_UNSET")
    names = ["OMNI_TEST_SET", "OMNI_TEST_UNSET"]
    asks = stage("env", "environment", factory_args={"names": names}, terminal=True)
    async with running(asks, model_path="m", env_defaults=dict.fromkeys(names, "default")) as coordinator:
        assert await coordinator.submit("r", {}) == {
            "OMNI_TEST_SET": "by the user",
            "OMNI_TEST_UNSET": "default",
        }


async def test_earlier_form_routes_by_get_next_and_ends_where_it_returns_none() -> None:
    async with running(
        earlier("first", "upper", "to_second_if_long"), earlier("second", "exclaim", "end")
    ) as coordinator:
        assert await coordinator.submit("short", "ab") == "AB"
        assert await coordinator.submit("long", "abcdef") == "ABCDEF!"


async def test_earlier_form_fans_out_and_aggregates() -> None:
    async with running(
        earlier("in", "upper", "to_both"),
        earlier("left", "exclaim", "to_join"),
        earlier("right", "reverse_async", "to_join"),
        earlier(
            "join",
            "passing",
            "end",
            input_handler=InputHandlerConfig(
                type="aggregated", sources=["left", "right"], merge_fn="process_factories.merge"
            ),
        ),
    ) as coordinator:
        assert await coordinator.submit("r", "abc") == {"left": "ABC!", "right": "CBA"}


async def test_executors_run_requests_side_by_side() -> None:
    async with running(earlier("meet", "rendezvous", "end")) as coordinator:
        both = asyncio.gather(coordinator.submit("one", {}), coordinator.submit("two", {}))
        assert sorted(await asyncio.wait_for(both, PATIENCE)) == ["one", "two"]


async def test_an_executors_error_is_its_requests_alone() -> None:
    async with running(earlier("engine", "engine", "end")) as coordinator:
        with pytest.raises(RuntimeError, match=r"stage 'engine'.*cannot do odd numbers"):
            await coordinator.submit("odd", 3)
        with pytest.raises(RuntimeError, match=r"stage 'engine'.*a number, please"):
            await coordinator.submit("text", "three")
        assert await coordinator.submit("even", 4) == {"raw_inputs": 4, "model_output": 2}


async def test_an_engines_stream_reaches_the_caller() -> None:
    async with running(earlier("engine", "engine", "end")) as coordinator:
        messages = [message async for message in coordinator.stream("r", OmniRequest(6))]
    assert [m.chunk for m in messages if isinstance(m, StreamMessage)] == [
        {"token_ids": [n]} for n in range(3)
    ]
    assert isinstance(messages[-1], CompleteMessage)
    assert messages[-1].result["model_output"] == 3


async def test_an_abort_reaches_the_engine_and_others_go_on() -> None:
    import executor_factories

    async with running(earlier("engine", "engine", "end")) as coordinator:
        held = asyncio.create_task(coordinator.submit("held", 0))
        async with asyncio.timeout(PATIENCE):
            while "held" not in executor_factories.engines[-1].inputs:
                await asyncio.sleep(0.01)
            assert await coordinator.abort("held")
            with pytest.raises(asyncio.CancelledError):
                await held
            while "held" in executor_factories.engines[-1].inputs:
                await asyncio.sleep(0.01)
        assert (await coordinator.submit("even", 4))["model_output"] == 2
    assert executor_factories.engines[-1].log == ["start", "stop"]


async def test_a_fused_chain_passes_each_links_result_on_and_its_errors_up() -> None:
    async with running(earlier("chain", "fused", "end")) as coordinator:
        results = await asyncio.gather(*(coordinator.submit(f"r{n}", n) for n in (4, 8, 12)))
        assert results == ["2 4", "4 8", "6 12"]
        with pytest.raises(RuntimeError, match="cannot do odd numbers"):
            await coordinator.submit("odd", 5)


async def test_an_executor_that_breaks_ends_its_stage() -> None:
    coordinator, stages = compile_pipeline(PipelineConfig(stages=[earlier("bad", "breaking", "end")]))
    runner = PipelineRunner(coordinator, stages)
    await runner.start()
    with pytest.raises(RuntimeError, match="the engine is on fire"):
        await asyncio.wait_for(coordinator.submit("r", {}), PATIENCE)
    await runner.stop()


def test_ranks_need_processes() -> None:
    stage = StageConfig(name="a", factory="executor_factories.x", terminal=True, tp_size=2)
    with pytest.raises(ValueError, match=r"stage 'a': tp_size=2 needs a process for each rank"):
        compile_pipeline(PipelineConfig(model_path="m", stages=[stage]))
