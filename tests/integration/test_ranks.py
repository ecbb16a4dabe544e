"""A stage split over two ranks, each in a process of its own: rank 0 leads, both do the same."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from processes import is_alive
from tiny_checkpoints import TinyCheckpoint
from waiting import PATIENCE, until

from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig, WatchdogConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest, RequestError, StreamMessage

PROMPT = [5, 9, 2, 77, 31]
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[..., TinyCheckpoint]) -> TinyCheckpoint:
    return tiny_checkpoint("llama")


def split(
    folder: Path, factory: str, tp_size: int = 2, model_path: str = "m", **factory_args: Any
) -> PipelineConfig:
    thinker = StageConfig(
        name="thinker",
        factory=factory,
        factory_args=factory_args,
        process="thinker",
        terminal=True,
        tp_size=tp_size,
    )
    return PipelineConfig(
        model_path=model_path,
        stages=[thinker],
        endpoints=EndpointsConfig(base_path=str(folder / "run")),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MultiProcessPipelineRunner]:
    config = split(
        tmp_path_factory.mktemp("ranks"),
        "engine_factories.create_compared",
        model_path=str(checkpoint.path),
        max_running_requests=3,
    )
    config.watchdog = WatchdogConfig(heartbeat_timeout=8.0)
    async with MultiProcessPipelineRunner(config) as runner:
        yield runner


async def ask(coordinator: Coordinator, request_id: str, prompt: list[int] = PROMPT, **params: Any) -> Any:
    request = OmniRequest({"prompt_token_ids": prompt}, {**GREEDY, **params})
    async with asyncio.timeout(PATIENCE):
        return (await coordinator.submit(request_id, request))["token_ids"]


def requests_in(coordinator: Coordinator) -> float:
    """The number of requests in the engine, by its own stats."""
    numbers = coordinator.stage_stats().get("thinker", {})
    return numbers.get("num_running_reqs", 0) + numbers.get("num_queue_reqs", 0)


@pytest.mark.asyncio(loop_scope="module")
async def test_ranks_stay_in_step_with_one_anothers_requests(
    replicas: MultiProcessPipelineRunner, checkpoint: TinyCheckpoint
) -> None:
    """With aborts, refused requests, and sampling without a seed."""
    coordinator = replicas.coordinator
    expected = checkpoint.greedy(PROMPT, 30, eos_token_id=None)
    long = asyncio.create_task(ask(coordinator, "long", max_new_tokens=240))
    greedy = [asyncio.create_task(ask(coordinator, f"g{n}", max_new_tokens=30)) for n in range(3)]
    sampled = [
        asyncio.create_task(ask(coordinator, f"s{n}", max_new_tokens=30, temperature=1.5)) for n in range(3)
    ]
    with pytest.raises(RequestError, match="must lie between 0 and 198"):
        await ask(coordinator, "refused", [5, 199])
    streamed = [
        message.chunk["text"]
        async for message in coordinator.stream(
            "st", OmniRequest({"prompt_token_ids": PROMPT}, {**GREEDY, "max_new_tokens": 30, "stream": True})
        )
        if isinstance(message, StreamMessage)
    ]
    assert await coordinator.abort("long")

    assert [await task for task in greedy] == [expected] * 3
    assert [int(text) for text in streamed] == expected
    drawn = [tuple(await task) for task in sampled]
    assert len(set(drawn)) == 3
    with pytest.raises(asyncio.CancelledError):
        await long
    await coordinator.flush_cache()
    assert await ask(coordinator, "after", max_new_tokens=30) == expected


@pytest.mark.asyncio(loop_scope="module")
async def test_ranks_follow_grammars_together(replicas: MultiProcessPipelineRunner) -> None:
    """Each compiles them itself, and a request runs once rank 0 has."""
    coordinator = replicas.coordinator
    plain = asyncio.create_task(ask(coordinator, "plain", max_new_tokens=20))
    asked = [
        asyncio.create_task(
            ask(coordinator, f"r{n}", max_new_tokens=40, temperature=1.0, regex=f"[a-f]{{{n + 1},9}}-[0-9]")
        )
        for n in range(4)
    ]
    with pytest.raises(RequestError, match="parenthesis"):
        await ask(coordinator, "wrong", regex="(")

    for n, task in enumerate(asked):
        assert re.fullmatch(rf"[a-f]{{{n + 1},9}}-[0-9]", bytes(await task).decode())
    assert len(await plain) == 20


@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_rank_fails_its_groups_requests_by_name_and_the_group_comes_back(
    replicas: MultiProcessPipelineRunner, checkpoint: TinyCheckpoint
) -> None:
    coordinator = replicas.coordinator
    # Rank 1 has no sockets: only its parent can notice its end.
    before = dict(replicas.process_ids)
    await until(lambda: requests_in(coordinator) == 0)
    held = asyncio.create_task(ask(coordinator, "held", [11, 3], max_new_tokens=50))
    await until(lambda: requests_in(coordinator) == 1)
    os.kill(before["thinker_tp1"], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="stage 'thinker': process 'thinker_tp1' was killed by SIGKILL"):
        await held
    tokens = await ask(coordinator, "again", max_new_tokens=12)
    assert tokens == checkpoint.greedy(PROMPT, 12, eos_token_id=None)
    assert set(replicas.process_ids.values()).isdisjoint(before.values())
    assert not any(psutil.pid_exists(pid) for pid in before.values())


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stopped_rank_takes_its_group_down_with_it_and_the_group_comes_back(
    replicas: MultiProcessPipelineRunner, checkpoint: TinyCheckpoint
) -> None:
    """The others wait for it in the middle of a step; its silence shows which rank it is."""
    coordinator = replicas.coordinator
    before = dict(replicas.process_ids)
    held = asyncio.create_task(ask(coordinator, "stopped", [11, 3], max_new_tokens=50))
    await until(lambda: requests_in(coordinator) == 1)
    os.kill(before["thinker_tp1"], signal.SIGSTOP)
    with pytest.raises(RuntimeError, match=r"'thinker_tp1' has not answered for \d+ s and is stopped"):
        await held
    tokens = await ask(coordinator, "after", max_new_tokens=12)
    assert tokens == checkpoint.greedy(PROMPT, 12, eos_token_id=None)
    assert set(replicas.process_ids.values()).isdisjoint(before.values())


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        ("environment", "tp_size=3, but factory process_factories.environment cannot build a part"),
        ("any_rank", r"rank \d of 3 was to be built"),
        ("rank_of_nothing", "returned a SimpleScheduler, which cannot be split over ranks"),
        ("broken_rank", "Process 'thinker_tp2' exited with status 1.*no weights for this rank"),
    ],
)
async def test_ranks_that_cannot_start_say_why_and_leave_nothing(
    tmp_path: Path, factory: str, text: str
) -> None:
    args = {"names": []} if factory == "environment" else {}
    before = set(psutil.Process().children(recursive=True))
    runner = MultiProcessPipelineRunner(split(tmp_path, f"process_factories.{factory}", 3, **args))

    with pytest.raises(RuntimeError, match=re.compile(text, re.S)):
        await runner.start(timeout=PATIENCE)

    assert [p for p in set(psutil.Process().children(recursive=True)) - before if is_alive(p)] == []
    assert not list(tmp_path.glob("run/*"))
