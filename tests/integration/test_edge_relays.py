"""One pipeline in real processes whose edges use objects, shared memory and nixl side by side."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from itertools import count, permutations
from typing import Any

import pytest
import pytest_asyncio
from edge_factories import CHUNK_BYTES, CHUNKS, PAYLOAD_BYTES, STREAMED, block
from relay_peers import BACKENDS, make_relay, require
from waiting import PATIENCE, until

from sglang_omni.config import LOCAL_OBJECT, EndpointsConfig, PipelineConfig, StageConfig, plan_pipeline
from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest
from sglang_omni.relay import RelayReadError

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEAR, LEFT, RIGHT = ["near"], ["left_one", "left_two"], ["right_one", "right_two"]
EVERYBODY = [*NEAR, *LEFT, *RIGHT]
_ids = map(str, count())


def pipeline(folder: str) -> PipelineConfig:
    """``source`` fans out and streams to its own process, to ``left`` and to ``right``; ``sink`` gathers."""

    def witness(name: str, process: str, **fields: Any) -> StageConfig:
        return StageConfig(
            name=name,
            factory="edge_factories.witness",
            factory_args={"name": name},
            process=process,
            next="sink",
            can_accept_stream_before_payload=name in STREAMED,
            **fields,
        )

    by_nixl = {"edge_relays": {"sink": "nixl"}}
    return PipelineConfig(
        model_path="none",
        stages=[
            StageConfig(
                name="source",
                factory="edge_factories.source",
                process="front",
                next=EVERYBODY,
                route_fn="edge_factories.route",
                stream_to=list(STREAMED),
                stream_done_to_fn="edge_factories.ended",
                project_payload={"near": "edge_factories.own_container"},
                edge_relays=dict.fromkeys(RIGHT, "nixl"),
            ),
            *(witness(name, "front") for name in NEAR),
            *(witness(name, "left") for name in LEFT),
            *(witness(name, "right", **by_nixl) for name in RIGHT),
            StageConfig(
                name="sink",
                factory="edge_factories.report",
                process="front",
                wait_for=EVERYBODY,
                wait_for_fn="edge_factories.expected",
                merge_fn="edge_factories.merge",
                terminal=True,
            ),
        ],
        endpoints=EndpointsConfig(base_path=folder),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MultiProcessPipelineRunner]:
    require("nixl")
    runner = MultiProcessPipelineRunner(pipeline(str(tmp_path_factory.mktemp("run"))))
    await runner.start(timeout=PATIENCE)
    yield runner
    await runner.stop()


def ask(runner: MultiProcessPipelineRunner, route: list[str], **params: Any) -> asyncio.Task[Any]:
    request = OmniRequest(None, {"route": route, **params})
    return asyncio.create_task(runner.coordinator.submit(params.pop("id", None) or next(_ids), request))


async def nothing_is_held(runner: MultiProcessPipelineRunner) -> None:
    """Returns once every stage has all of its credit back."""
    async with asyncio.timeout(PATIENCE):
        while any(
            numbers.get(name)
            for numbers in runner.coordinator.stage_stats().values()
            for name in ("relay_held_bytes", "relay_held_slots")
        ):
            await asyncio.sleep(0.01)


async def something_is_held(runner: MultiProcessPipelineRunner, nbytes: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while runner.coordinator.stage_stats().get("source", {}).get("relay_held_bytes", 0) < nbytes:
            await asyncio.sleep(0.01)


def came_as_planned(answer: dict[str, Any], route: list[str]) -> None:
    ways = {**dict.fromkeys(NEAR, "own"), **dict.fromkeys(LEFT, "shared"), **dict.fromkeys(RIGHT, "read")}
    assert sorted(answer) == sorted(route)
    for name, report in answer.items():
        chunks = CHUNKS if name in STREAMED else 0
        assert report == {
            "way": ways[name],
            "back": ways[name],
            "same": name in NEAR,
            "right": True,
            "chunk_ways": [ways[name]] * chunks,
            "same_chunks": [name in NEAR] * chunks,
            "chunks_right": [True] * chunks,
        }, name


async def test_no_backend_reads_what_another_has_written() -> None:
    for backend in BACKENDS:
        require(backend)
    relays = {backend: make_relay(backend, backend) for backend in BACKENDS}
    for writer, reader in permutations(BACKENDS, 2):
        metadata, _ = await relay_io.write_blob(relays[writer], "key", block(0, PAYLOAD_BYTES))
        with pytest.raises(RelayReadError, match=f"not the metadata of a {reader} put"):
            await relay_io.read_blob(relays[reader], "key", metadata)
    for relay in relays.values():
        relay.close()


async def test_the_plan_says_so() -> None:
    ways = {(edge.source, edge.target): edge.transport for edge in plan_pipeline(pipeline("/tmp")).edges}
    for names, transport in ((NEAR, LOCAL_OBJECT), (LEFT, "shm"), (RIGHT, "nixl")):
        for name in names:
            assert ways["source", name] == ways[name, "sink"] == transport


async def test_payloads_and_streams_go_the_planned_ways(runner: MultiProcessPipelineRunner) -> None:
    came_as_planned(await ask(runner, EVERYBODY), EVERYBODY)
    # Through shared memory the payload once for both stages there, over nixl once for each; to either side
    # the chunks for the stage that gets them.
    expected = 3 * PAYLOAD_BYTES + 2 * CHUNKS * CHUNK_BYTES
    await until(lambda: written(runner, "source") >= expected)
    for name in (*LEFT, *RIGHT):
        await until(lambda name=name: written(runner, name) >= PAYLOAD_BYTES)
    await nothing_is_held(runner)
    stats = runner.coordinator.stage_stats()
    assert stats["source"]["relay_written_bytes_total"] < expected + 4096 * (2 * CHUNKS + 3)
    for name in (*LEFT, *RIGHT):
        # Only one of them reads others' memory, and so may have to give a read up.
        assert ("relay_quarantined_reads" in stats[name]) == (name in RIGHT)
        assert stats[name]["relay_written_bytes_total"] < PAYLOAD_BYTES + 4096
    for name in NEAR:
        assert "relay_written_bytes_total" not in stats.get(name, {})
    assert not stats.get("sink", {}).get("relay_written_bytes_total")


def written(runner: MultiProcessPipelineRunner, stage: str) -> float:
    """As of a little earlier: see ``Coordinator.stage_stats``."""
    return runner.coordinator.stage_stats().get(stage, {}).get("relay_written_bytes_total", 0)


async def test_many_at_once_give_all_credit_back(runner: MultiProcessPipelineRunner) -> None:
    routes = [EVERYBODY, [*LEFT, "right_two"], RIGHT, NEAR] * 6
    for answer, route in zip(
        await asyncio.gather(*(ask(runner, route) for route in routes)), routes, strict=True
    ):
        came_as_planned(answer, route)
    await nothing_is_held(runner)


@pytest.mark.parametrize("keeper", ["left_one", "right_one"])
async def test_an_abort_gives_its_credit_back_on_every_way(
    runner: MultiProcessPipelineRunner, keeper: str
) -> None:
    kept = ask(runner, EVERYBODY, keep=keeper, id=f"kept by {keeper}")
    if keeper in LEFT:
        # It is the reader's views that hold the sender's memory.
        await something_is_held(runner, PAYLOAD_BYTES)
    came_as_planned(await ask(runner, EVERYBODY), EVERYBODY)
    assert not kept.done()
    await runner.coordinator.abort(f"kept by {keeper}")
    with pytest.raises(asyncio.CancelledError):
        await kept
    await nothing_is_held(runner)
    came_as_planned(await ask(runner, EVERYBODY), EVERYBODY)


@pytest.mark.parametrize(("process", "members", "others"), [("right", RIGHT, LEFT), ("left", LEFT, RIGHT)])
async def test_a_killed_process_costs_only_what_went_there(
    runner: MultiProcessPipelineRunner, process: str, members: list[str], others: list[str]
) -> None:
    lost = ask(runner, EVERYBODY, keep=members[0])
    # In order after it on every edge, so that the other is where it is to stay.
    came_as_planned(await ask(runner, EVERYBODY), EVERYBODY)
    before = runner.process_ids[process]
    os.kill(before, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=f"process '{process}' was killed by SIGKILL"):
        await lost
    came_as_planned(await ask(runner, [*NEAR, *others]), [*NEAR, *others])
    async with asyncio.timeout(PATIENCE):
        while runner.coordinator.health()["down_stages"]:
            await asyncio.sleep(0.01)
    assert runner.process_ids[process] != before
    came_as_planned(await ask(runner, EVERYBODY), EVERYBODY)
    await nothing_is_held(runner)
