"""Payloads that stop or corrupt other pipelines, through three processes: they arrive, or fail alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import breaking_factories
import pytest
import pytest_asyncio
import torch
from waiting import PATIENCE

from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

pytestmark = pytest.mark.asyncio(loop_scope="module")

ERRORS = {"a self-reference", "a lock"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MultiProcessPipelineRunner]:
    """One for all: a payload that stops a stage or ends its process fails every later test."""

    def stage(name: str, **fields: Any) -> StageConfig:
        return StageConfig(name=name, process=name, factory=f"breaking_factories.{name}", **fields)

    config = PipelineConfig(
        model_path="none",
        stages=[stage("make", next="examine"), stage("examine", next="last"), stage("last", terminal=True)],
        endpoints=EndpointsConfig(base_path=str(tmp_path_factory.mktemp("run"))),
    )
    runner = MultiProcessPipelineRunner(config, max_restarts=0)
    await runner.start()
    yield runner
    await runner.stop()


async def submit(runner: MultiProcessPipelineRunner, inputs: dict[str, Any]) -> Any:
    return await asyncio.wait_for(runner.coordinator.submit(f"request {inputs}", inputs), PATIENCE)


@pytest.mark.parametrize("case", sorted(breaking_factories.CASES.keys() - ERRORS))
async def test_it_arrives_through_every_hop_and_as_a_result(
    runner: MultiProcessPipelineRunner, case: str
) -> None:
    processes = runner.process_ids
    result = await submit(runner, {"case": case})
    assert result["wrong"] is None
    assert breaking_factories.difference(breaking_factories.CASES[case](), result["data"]) is None
    assert runner.process_ids == processes


async def test_aliased_tensors_arrive_aliased(runner: MultiProcessPipelineRunner) -> None:
    assert (await submit(runner, {"case": "aliased tensors"}))["aliased"] is True


async def test_tensors_in_the_request_itself(runner: MultiProcessPipelineRunner) -> None:
    carried = {"image": torch.arange(12.0).reshape(3, 4), 3: torch.tensor(True)}
    result = await submit(runner, {"carry": carried})
    assert breaking_factories.difference(carried, result["data"]) is None


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("a self-reference", r"stage 'make'.*\['layers'\]\[0\]\['parent'\]"),
        ("a lock", r"stage 'make'.*\['cache'\]\[0\]\['guard'\].*lock"),
    ],
)
async def test_what_cannot_be_sent_fails_by_path_and_alone(
    runner: MultiProcessPipelineRunner, case: str, text: str
) -> None:
    processes = runner.process_ids
    others = [asyncio.create_task(submit(runner, {"case": "numpy", "n": n})) for n in range(4)]
    with pytest.raises(RuntimeError, match=text):
        await submit(runner, {"case": case})
    assert [(await other)["wrong"] for other in others] == [None] * 4
    assert runner.process_ids == processes
