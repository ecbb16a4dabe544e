"""Replicas of stages in real processes: each request stays with its own, and only these fail with one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from replica_factories import CHUNKS
from tiny_checkpoints import TinyCheckpoint
from waiting import PATIENCE, until

from sglang_omni.client import Client
from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import CompleteMessage, OmniRequest, StreamMessage
from sglang_omni.serve import create_app


def stage(name: str, factory: str, *, process: str = "", **fields: Any) -> StageConfig:
    return StageConfig(name=name, factory=factory, process=process or name, **fields)


def pipeline(folder: Path, *stages: StageConfig, model_path: str = "m") -> PipelineConfig:
    return PipelineConfig(
        model_path=model_path,
        stages=list(stages),
        endpoints=EndpointsConfig(base_path=str(folder / "run")),
    )


def traced(name: str, folder: Path, **fields: Any) -> StageConfig:
    """A stage that adds its process's id to the payload, and holds requests that ask for it."""
    args = {"name": name, "folder": str(folder)}
    return stage(name, "process_factories.trace", factory_args=args, **fields)


@asynccontextmanager
async def running(config: PipelineConfig, **options: Any) -> AsyncIterator[MultiProcessPipelineRunner]:
    runner = MultiProcessPipelineRunner(config, **options)
    await runner.start(timeout=300)
    try:
        yield runner
    finally:
        await runner.stop()


def served(coordinator: Coordinator) -> httpx.AsyncClient:
    app = create_app(Client(coordinator))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pipeline")


async def gather(coordinator: Coordinator, count: int, prefix: str, **inputs: Any) -> list[Any]:
    """The results of as many requests at once, or what they failed with."""
    requests = (coordinator.submit(f"{prefix}{index}", inputs) for index in range(count))
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*requests, return_exceptions=True)


def pids(runner: MultiProcessPipelineRunner, process: str) -> set[int]:
    return {pid for name, pid in runner.process_ids.items() if name.startswith(f"{process}@r")}


def spread(seen: list[int]) -> int:
    """By how many requests the most and the least used differ."""
    counts = Counter(seen).values()
    return max(counts) - min(counts)


# --- one request, one replica -------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def braid(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MultiProcessPipelineRunner]:
    """Fan-out and fan-in between replicas: two stages send the third their payloads and their streams."""
    own = "replica_factories."
    speaks = {"next": "join", "stream_to": ["join"], "project_payload": {"join": f"{own}project"}}
    config = pipeline(
        tmp_path_factory.mktemp("braid"),
        stage("split", f"{own}splitter", next=["left", "right"], route_fn=f"{own}targets", num_replicas=2),
        stage("left", f"{own}speaker", num_replicas=2, **speaks),
        stage("right", f"{own}speaker", **speaks),
        stage(
            "join",
            f"{own}listener",
            wait_for=["left", "right"],
            wait_for_fn=f"{own}sources",
            merge_fn=f"{own}merge",
            terminal=True,
            num_replicas=3,
            can_accept_stream_before_payload=True,
        ),
    )
    async with running(config) as runner:
        yield runner


async def follow(coordinator: Coordinator, request_id: str) -> tuple[list[StreamMessage], Any]:
    """A request's chunks, and its result."""
    messages = [message async for message in coordinator.stream(request_id, {})]
    last = messages.pop()
    assert isinstance(last, CompleteMessage)
    assert last.from_stage == "join"
    return [message for message in messages if isinstance(message, StreamMessage)], last.result


@pytest.mark.asyncio(loop_scope="module")
async def test_every_message_of_a_request_meets_one_replica(braid: MultiProcessPipelineRunner) -> None:
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*(follow(braid.coordinator, f"r{index}") for index in range(200)))
    for chunks, result in answers:
        # Only a replica that has seen both payloads and both streams to their ends answers at all.
        merged = result["merged"]
        assert merged.keys() == {"left", "right"}
        assert merged["left"]["split_by"] == merged["right"]["split_by"]
        assert merged["left"]["projected"]
        assert merged["right"]["projected"]
        assert result["ended"] == ["left", "right"]
        for name in ("left", "right"):
            heard = result["heard"][name]
            assert heard == [{"number": n, "pid": merged[name]["pid"]} for n in range(CHUNKS)]
        assert [chunk.chunk for chunk in chunks] == [
            {"number": n, "pid": result["pid"]} for n in range(CHUNKS)
        ]
        assert {(chunk.from_stage, chunk.stage_name) for chunk in chunks} == {("join", "join")}
    results = [result for _, result in answers]
    for process, used in {
        "split": [result["merged"]["left"]["split_by"] for result in results],
        "left": [result["merged"]["left"]["pid"] for result in results],
        "join": [result["pid"] for result in results],
    }.items():
        assert set(used) == pids(braid, process)
        assert spread(used) <= 20
    assert {result["merged"]["right"]["pid"] for result in results} == {braid.process_ids["right"]}


@pytest.mark.asyncio(loop_scope="module")
async def test_operators_see_each_replica_and_callers_see_stages(braid: MultiProcessPipelineRunner) -> None:
    coordinator = braid.coordinator
    await follow(coordinator, "timed")
    await until(lambda: len(coordinator.timings("timed")) == 4)
    assert coordinator.timings("timed").keys() == {"split", "left", "right", "join"}
    instances = ["split@r0", "split@r1", "left@r0", "left@r1", "right", "join@r0", "join@r1", "join@r2"]
    assert coordinator.health()["stages"] == instances
    assert list(coordinator.stage_load()) == instances
    await until(lambda: coordinator.stage_stats().keys() == {*instances})


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_reported_to_all_stages_reaches_each_replica(braid: MultiProcessPipelineRunner) -> None:
    before = {r["pid"]: r["flushes"] for r in await gather(braid.coordinator, 9, "before")}
    await braid.coordinator.flush_cache()
    after: dict[int, int] = {}
    # It is sent to all at once, and on another way than requests, which may come first.
    for turn in range(100):
        after = {r["pid"]: r["flushes"] for r in await gather(braid.coordinator, 9, f"after-{turn}")}
        if after == {pid: flushes + 1 for pid, flushes in before.items()}:
            break
    assert after == {pid: flushes + 1 for pid, flushes in before.items()}
    assert after.keys() == pids(braid, "join")


# --- where replicas may be ----------------------------------------------------------------------------


async def test_entry_terminal_and_stages_of_one_process_may_be_replicated(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path,
        traced("a", tmp_path, process="both", next="b", num_replicas=2),
        traced("b", tmp_path, process="both", next="c", num_replicas=2),
        traced("c", tmp_path, next="d"),
        traced("d", tmp_path, terminal=True, num_replicas=2),
    )
    async with running(config) as runner:
        assert list(runner.process_ids) == ["both@r0", "both@r1", "c", "d@r0", "d@r1"]
        results = await gather(runner.coordinator, 40, "r")
        assert all(result["seen"]["a"] == result["seen"]["b"] for result in results)
        for name, process in {"a": "both", "d": "d"}.items():
            seen = [result["seen"][name] for result in results]
            assert set(seen) == pids(runner, process)
            assert spread(seen) <= 4


def generated(coordinator: Coordinator) -> dict[str, float]:
    """By instance, how many tokens it has made."""
    return {name: it.get("generation_tokens_total", 0) for name, it in coordinator.stage_stats().items()}


async def test_replicas_of_ranks_give_the_same_tokens(
    tiny_checkpoint: Callable[..., TinyCheckpoint], tmp_path: Path
) -> None:
    thinker = stage("thinker", "engine_factories.create_compared", terminal=True, tp_size=2, num_replicas=2)
    config = pipeline(tmp_path, thinker, model_path=str(tiny_checkpoint("llama").path))
    params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 6}
    request = OmniRequest({"prompt_token_ids": [5, 9, 2, 77, 31]}, params)
    async with running(config) as runner:
        assert list(runner.process_ids) == [f"thinker@r{r}_tp{tp}" for r in (0, 1) for tp in (0, 1)]
        async with asyncio.timeout(PATIENCE):
            answers = [await runner.coordinator.submit(f"r{index}", request) for index in range(2)]
        assert len(answers[0]["token_ids"]) == 6
        assert answers[0]["token_ids"] == answers[1]["token_ids"]
        each = {"thinker@r0": 6.0, "thinker@r1": 6.0}
        await until(lambda: generated(runner.coordinator) == each)


# --- one of them dies -----------------------------------------------------------------------------------


async def test_a_replica_that_is_killed_takes_only_its_own_requests(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path,
        traced("first", tmp_path, next="middle"),
        traced("middle", tmp_path, next="last", num_replicas=3),
        traced("last", tmp_path, terminal=True),
    )
    names = {f"middle@r{number}" for number in range(3)}
    async with running(config) as runner:
        coordinator = runner.coordinator
        held = asyncio.create_task(gather(coordinator, 30, "held", hold="middle"))
        await until(lambda: all(coordinator.stage_load()[name] == 10 for name in names))
        before = runner.process_ids
        shut = tmp_path / "middle.shut"
        shut.touch()
        os.kill(before["middle@r1"], signal.SIGKILL)
        await until(lambda: "middle@r1" in coordinator.health()["down_stages"])
        async with served(coordinator) as http:
            health = await http.get("/health")
            assert (health.status_code, health.json()["status"]) == (200, "degraded")
            assert health.json()["down_stages"].keys() == {"middle@r1"}
            metrics = (await http.get("/metrics")).text
            assert 'sglang_omni_stage_requests{stage="middle@r2"} 10' in metrics
            assert "sglang_omni_stages_down 1" in metrics
            assert (await http.get("/get_load")).json()["num_reqs"] == 20
        # While it is away the others are given everything, and nobody waits for it.
        later = asyncio.create_task(gather(coordinator, 10, "later"))
        Path(tmp_path, "middle.go").touch()
        failed = [error for error in await held if isinstance(error, Exception)]
        answered = [result for result in await held if not isinstance(result, Exception)]
        assert len(failed) == 10
        assert all(
            "stage 'middle@r1'" in str(error) and "was killed by SIGKILL" in str(error) for error in failed
        )
        assert {r["seen"]["middle"] for r in answered} == {before["middle@r0"], before["middle@r2"]}
        assert not [error for error in await later if isinstance(error, Exception)]
        shut.unlink()
        await until(lambda: not coordinator.health()["down_stages"])
        assert coordinator.health()["running"]
        again = runner.process_ids
        assert again["middle@r1"] != before["middle@r1"]
        assert {**again, "middle@r1": 0} == {**before, "middle@r1": 0}
        results = await gather(coordinator, 30, "again")
        assert Counter(r["seen"]["middle"] for r in results).keys() == pids(runner, "middle")


async def test_requests_wait_when_every_replica_is_down(tmp_path: Path) -> None:
    config = pipeline(tmp_path, traced("a", tmp_path, terminal=True, num_replicas=2))
    async with running(config) as runner:
        before = pids(runner, "a")
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: runner.coordinator.health()["down_stages"].keys() == {"a@r0", "a@r1"})
        results = await gather(runner.coordinator, 4, "r")
        assert not before & {result["seen"]["a"] for result in results}


async def test_the_pipeline_is_lost_with_the_last_replica(tmp_path: Path) -> None:
    config = pipeline(tmp_path, traced("a", tmp_path, terminal=True, num_replicas=2))
    async with running(config, max_restarts=0) as runner:
        coordinator = runner.coordinator
        lost = asyncio.create_task(runner.wait_failed())
        os.kill(runner.process_ids["a@r0"], signal.SIGKILL)
        await until(lambda: "a@r0" in coordinator.health()["down_stages"])
        results = await gather(coordinator, 4, "r")
        assert {result["seen"]["a"] for result in results} == {runner.process_ids["a@r1"]}
        assert not lost.done()
        os.kill(runner.process_ids["a@r1"], signal.SIGKILL)
        assert "process 'a@r1' was killed by SIGKILL" in await asyncio.wait_for(lost, PATIENCE)
        with pytest.raises(RuntimeError, match="'a@r1'"):
            await coordinator.submit("late", {})
