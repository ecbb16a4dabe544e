"""Input that comes while its request runs, through real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from waiting import PATIENCE, until

from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import CompleteMessage, OmniRequest, RequestError, Unavailable

pytestmark = pytest.mark.asyncio(loop_scope="module")


def pipeline(folder: Path, *, takes_input: bool = True) -> PipelineConfig:
    stages = [
        StageConfig(
            name="first",
            process="first",
            factory="input_factories.first",
            factory_args={"folder": str(folder)},
            next="sum",
        ),
        StageConfig(
            name="sum",
            process="sum",
            factory="input_factories.adder",
            takes_input=takes_input,
            num_replicas=2,
            terminal=True,
        ),
    ]
    return PipelineConfig(
        model_path="m", stages=stages, endpoints=EndpointsConfig(base_path=str(folder / "run"))
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("input")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(folder: Path) -> AsyncIterator[MultiProcessPipelineRunner]:
    runner = MultiProcessPipelineRunner(pipeline(folder))
    await runner.start(timeout=300)
    try:
        yield runner
    finally:
        await runner.stop()


async def chunks(*values: float, wait: asyncio.Event | None = None) -> AsyncGenerator[Any, None]:
    """A chunk for each value; the second waits."""
    for number, value in enumerate(values):
        if number == 1 and wait is not None:
            await wait.wait()
        yield np.full(number + 1, value, np.float32)


async def answer(
    coordinator: Coordinator, request_id: str, more: AsyncGenerator[Any, None], **inputs: Any
) -> tuple[str, Any]:
    """The streamed text, and the result."""
    texts, request = [], OmniRequest(inputs, {"stream": True})
    async with asyncio.timeout(PATIENCE):
        async for batch in coordinator.stream_batches(request_id, request, more):
            if isinstance(batch, CompleteMessage):
                return "".join(texts), batch.result
            texts += [message.chunk["text"] for message in batch]
    raise AssertionError("no result")


def is_with_sum(coordinator: Coordinator, request_id: str) -> bool:
    return any(instance.startswith("sum") for instance in coordinator.held_at(request_id))


async def settled(coordinator: Coordinator) -> None:
    """Nothing holds a request any more, and nothing waits for a report."""
    await until(lambda: not any(coordinator.stage_load().values()))
    await until(lambda: not coordinator._counts._counts)


async def test_chunks_are_answered_as_they_come(runner: MultiProcessPipelineRunner) -> None:
    wait, coordinator = asyncio.Event(), runner.coordinator
    request = OmniRequest({"start": 0.5}, {"stream": True})
    batches = coordinator.stream_batches("one", request, chunks(1, 2, 3, wait=wait))
    async with asyncio.timeout(PATIENCE), aclosing(batches):
        first = await anext(batches)
        assert isinstance(first, list)
        assert [message.chunk["text"] for message in first] == ["1.5 "]
        wait.set()
        rest = [each async for each in batches]
    assert isinstance(rest[-1], CompleteMessage)
    assert rest[-1].result["text"] == "14.5"
    assert rest[-1].result["sizes"] == [1, 2, 3]
    await settled(coordinator)


async def test_requests_keep_their_own_chunks_in_order(runner: MultiProcessPipelineRunner) -> None:
    values = [[float(number)] * (number % 7 + 1) for number in range(60)]
    answers = await asyncio.gather(
        *(answer(runner.coordinator, f"many-{i}", chunks(*each)) for i, each in enumerate(values))
    )
    for each, (text, result) in zip(values, answers, strict=True):
        assert result["sizes"] == [number + 1 for number in range(len(each))]
        assert text.split()[-1] == result["text"] == f"{sum(v * (n + 1) for n, v in enumerate(each)):g}"
    assert len({result["pid"] for _, result in answers}) == 2
    await settled(runner.coordinator)


async def test_input_may_come_before_its_request(runner: MultiProcessPipelineRunner, folder: Path) -> None:
    coming = asyncio.create_task(answer(runner.coordinator, "early", chunks(1, 2), hold=True, start=4))
    await until(lambda: is_with_sum(runner.coordinator, "early"))
    (folder / "go").touch()
    text, result = await coming
    assert (text, result["text"]) == ("5 9 ", "9")
    await settled(runner.coordinator)


async def test_no_input_at_all_is_an_empty_one(runner: MultiProcessPipelineRunner) -> None:
    text, result = await answer(runner.coordinator, "none", chunks(), start=7)
    assert (text, result["text"]) == ("", "7")
    await settled(runner.coordinator)


async def test_a_failure_of_the_input_is_its_requests_alone(runner: MultiProcessPipelineRunner) -> None:
    async def broken() -> AsyncGenerator[Any, None]:
        yield np.ones(1, np.float32)
        raise RequestError("not sound", param="audio", code="invalid_value")

    good, bad, wrong, unsendable = await asyncio.gather(
        answer(runner.coordinator, "good", chunks(1, 2)),
        answer(runner.coordinator, "bad", broken()),
        answer(runner.coordinator, "wrong", chunks(1, float("nan"), 2)),
        answer(runner.coordinator, "unsendable", _one(object())),
        return_exceptions=True,
    )
    assert isinstance(good, tuple)
    assert isinstance(bad, RequestError)
    assert bad.message == "not sound"
    assert "ZeroDivisionError" in str(wrong)
    assert "object" in str(unsendable)
    await settled(runner.coordinator)


async def _one(value: Any) -> AsyncGenerator[Any, None]:
    yield value


async def test_the_input_ends_with_its_request(runner: MultiProcessPipelineRunner) -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[Any, None]:
        try:
            while True:
                yield np.ones(1, np.float32)
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    coming = asyncio.create_task(answer(runner.coordinator, "aborted", endless()))
    await until(lambda: is_with_sum(runner.coordinator, "aborted"))
    assert await runner.coordinator.abort("aborted")
    with pytest.raises(asyncio.CancelledError):
        await coming
    async with asyncio.timeout(PATIENCE):
        await closed.wait()
    await settled(runner.coordinator)


async def test_a_stage_that_dies_fails_those_that_it_hears(runner: MultiProcessPipelineRunner) -> None:
    wait, coordinator = asyncio.Event(), runner.coordinator
    coming = [
        asyncio.create_task(answer(coordinator, f"dying-{number}", chunks(1, 2, wait=wait)))
        for number in range(4)
    ]
    for number in range(4):
        await until(partial(is_with_sum, coordinator, f"dying-{number}"))
    await asyncio.sleep(0.1)  # so that "first" has let go of them
    (pid,) = (pid for name, pid in runner.process_ids.items() if name == "sum@r0")
    os.kill(pid, signal.SIGKILL)
    await until(lambda: any(task.done() for task in coming))
    wait.set()
    outcomes = await asyncio.gather(*coming, return_exceptions=True)
    assert sum(isinstance(outcome, Unavailable) for outcome in outcomes) == 2
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 2
    await until(lambda: not coordinator.health()["down_stages"])
    text, _ = await answer(coordinator, "after", chunks(1, 2))
    assert text == "1 5 "
    await settled(coordinator)


async def test_a_pipeline_says_that_it_takes_none(tmp_path: Path) -> None:
    runner = MultiProcessPipelineRunner(pipeline(tmp_path, takes_input=False))
    await runner.start(timeout=300)
    try:
        with pytest.raises(RequestError, match="takes no input while a request runs"):
            await answer(runner.coordinator, "none", chunks(1))
    finally:
        await runner.stop()
