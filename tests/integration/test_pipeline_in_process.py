"""Coordinator and stages together: real sockets and relay, all in one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.pipeline.stage.input import AggregatedInput
from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.pipeline.transport.control_plane import StageControlPlane
from sglang_omni.proto import CompleteMessage, OmniRequest, RequestError, StagePayload, StreamMessage
from sglang_omni.relay.base import create_relay
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.worker_pool import WorkerPool

WAIT_S = 60


class Running:
    def __init__(self, coordinator: Coordinator, stages: dict[str, Stage]) -> None:
        self.coordinator = coordinator
        self.stages = stages

    async def submit(self, request_id: str, request: Any = None) -> Any:
        return await asyncio.wait_for(self.coordinator.submit(request_id, request), WAIT_S)

    async def settled(self) -> None:
        """Returns once nothing anywhere remembers a request; fails where something does for long."""
        async with asyncio.timeout(WAIT_S):
            while (
                self.coordinator._settling._requests
                or self.coordinator._counts._counts
                or any(stage._requests.active for stage in self.stages.values())
            ):
                await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def _no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the stages' reports do not settle stays unsettled, for `settled` to find."""
    monkeypatch.setattr("sglang_omni.pipeline.coordinator.requests._SETTLE_S", 1000.0)


@asynccontextmanager
async def pipeline(
    directory: Path,
    stages: Mapping[str, dict[str, Any]],
    *,
    together: bool = False,
    **options: Any,
) -> AsyncIterator[Running]:
    """Runs stages given as ``{name: Stage's arguments}``; the first one is the entry.

    ``together``: edges hand over objects, as within one process; through sockets and relay otherwise.
    """
    endpoint = {name: f"ipc://{directory}/{name}" for name in ("completion", "abort", *stages)}
    terminals = [name for name, wiring in stages.items() if wiring.pop("terminal", False)]
    coordinator = Coordinator(
        endpoint["completion"], endpoint["abort"], next(iter(stages)), terminals, **options
    )
    await coordinator.start()
    dispatcher = LocalStageDispatcher()
    built = {}
    for name, wiring in stages.items():
        target = wiring.pop("next", None)
        wiring.setdefault("get_next", lambda request_id, output, target=target: target)
        built[name] = Stage(
            name=name,
            control_plane=StageControlPlane(name, endpoint[name], endpoint["completion"], endpoint["abort"]),
            endpoints={other: endpoint[other] for other in stages},
            relay=create_relay("shm", engine_id=name),
            same_process_targets=set(stages) if together else set(),
            local_dispatcher=dispatcher,
            **wiring,
        )
        coordinator.register_stage(name, endpoint[name])
    dispatcher.register_many(built.values())
    running = [asyncio.create_task(stage.run()) for stage in built.values()]
    try:
        yield Running(coordinator, built)
    finally:
        await coordinator.shutdown_stages()
        await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), WAIT_S)
        await coordinator.stop()


def adding(text: str) -> SimpleScheduler:
    """A stage that appends to ``data["path"]``."""

    def compute(payload: StagePayload) -> StagePayload:
        path = payload.data.get("path", ())
        return StagePayload(payload.request_id, payload.request, {**payload.data, "path": (*path, text)})

    return SimpleScheduler(compute)


def merge(received: dict[str, StagePayload]) -> StagePayload:
    one = next(iter(received.values()))
    paths = {source: payload.data["path"] for source, payload in sorted(received.items())}
    return StagePayload(one.request_id, one.request, {"path": (paths,)})


def holds(stage: Stage) -> bool:
    (relay,) = stage.relays.all
    return any(edge["held"] for edge in relay.stats().values())


both_ways = pytest.mark.parametrize("together", [False, True], ids=["relay", "objects"])


@both_ways
async def test_three_stages_in_a_row(tmp_path: Path, together: bool) -> None:
    stages = {
        "a": {"scheduler": adding("a"), "next": "b"},
        "b": {"scheduler": adding("b"), "next": "c"},
        "c": {"scheduler": adding("c"), "terminal": True},
    }
    async with pipeline(tmp_path, stages, together=together) as run:
        result = await run.submit("r", {"x": 1})
        assert result == {"raw_inputs": {"x": 1}, "path": ("a", "b", "c")}
        await run.settled()
        assert run.coordinator.timings("r").keys() == {"a", "b", "c"}


async def test_the_visits_of_quick_requests_are_reported(tmp_path: Path) -> None:
    """A request that comes and goes between two reports of its stage, whose counts it never changes."""
    async with pipeline(tmp_path, {"a": {"scheduler": adding("a"), "terminal": True}}) as run:
        visited: list[str] = []
        run.coordinator.watch_visits(lambda visit: visited.append(visit.instance))
        names = [f"r{number}" for number in range(20)]
        await asyncio.gather(*(run.submit(name, {}) for name in names))
        await run.settled()
        assert visited == ["a"] * len(names)
        assert all(run.coordinator.timings(name).keys() == {"a"} for name in names)


@both_ways
async def test_large_arrays_survive_the_way(tmp_path: Path, together: bool) -> None:
    def double(payload: StagePayload) -> StagePayload:
        return StagePayload(payload.request_id, payload.request, {"a": payload.data["a"] * 2})

    def make(payload: StagePayload) -> StagePayload:
        return StagePayload(payload.request_id, payload.request, {"a": np.arange(100_000, dtype="f4")})

    def total(payload: StagePayload) -> StagePayload:
        return StagePayload(payload.request_id, payload.request, float(payload.data["a"].sum(dtype="f8")))

    stages = {
        "a": {"scheduler": SimpleScheduler(make), "next": "b"},
        "b": {"scheduler": SimpleScheduler(double), "next": "c"},
        "c": {"scheduler": SimpleScheduler(total), "terminal": True},
    }
    async with pipeline(tmp_path, stages, together=together) as run:
        results = await asyncio.gather(*(run.submit(f"r{i}") for i in range(20)))
        assert results == [float(2 * np.arange(100_000, dtype="f8").sum())] * 20


@both_ways
async def test_fan_out_and_fan_in(tmp_path: Path, together: bool) -> None:
    stages = {
        "split": {"scheduler": adding("split"), "next": ["left", "right"]},
        "left": {"scheduler": adding("left"), "next": "join"},
        "right": {"scheduler": adding("right"), "next": "join"},
        "join": {
            "scheduler": adding("join"),
            "input_handler": AggregatedInput({"left", "right"}, merge),
            "terminal": True,
        },
    }
    async with pipeline(tmp_path, stages, together=together) as run:
        results = await asyncio.gather(*(run.submit(f"r{i}", {}) for i in range(50)))
        assert results == [{"path": ({"left": ("split", "left"), "right": ("split", "right")}, "join")}] * 50
        await run.settled()


async def test_the_request_decides_its_route_its_fan_in_and_its_ends(tmp_path: Path) -> None:
    def route(request_id: str, output: StagePayload) -> list[str]:
        return list(output.request.metadata["via"])

    def expected(request_id: str, source: str, payload: StagePayload) -> list[str]:
        return list(payload.request.metadata["via"])

    stages = {
        "split": {"scheduler": adding("split"), "get_next": route},
        "left": {"scheduler": adding("left"), "next": "join"},
        "right": {"scheduler": adding("right"), "next": "join"},
        "join": {
            "scheduler": adding("join"),
            "input_handler": AggregatedInput({"left", "right"}, merge, expected),
            "get_next": lambda request_id, output: output.request.metadata["then"],
            "terminal": True,
        },
        "extra": {"scheduler": adding("extra"), "terminal": True},
    }

    def ends(request: OmniRequest) -> list[str] | None:
        return ["extra"] if request.metadata["then"] else ["join"]

    async with pipeline(tmp_path, stages, terminal_stages_resolver=ends) as run:
        for via in (["left"], ["right"], ["left", "right"]):
            request = OmniRequest({}, metadata={"via": via, "then": None})
            result = await run.submit("-".join(via), request)
            assert result["path"][0].keys() == set(via)
        request = OmniRequest({}, metadata={"via": ["left"], "then": "extra"})
        assert (await run.submit("on", request))["path"][-2:] == ("join", "extra")
        await run.settled()


class Emitter:
    """Streams the numbers below ``data["raw_inputs"]`` to its targets, then returns how many."""

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage] = Queue()
        self.outbox: Queue[OutgoingMessage] = Queue()
        self._stop = threading.Event()

    def start(self) -> None:
        while not self._stop.is_set():
            message = self.inbox.get()
            if message.type != "new_request" or message.data is None:
                continue
            payload = message.data
            count = payload.data["raw_inputs"]
            for number in range(count):
                self.outbox.put(OutgoingMessage(message.request_id, "stream", {"n": number}))
                self.outbox.put(
                    OutgoingMessage(message.request_id, "stream", str(number), target="coordinator")
                )
            result = StagePayload(message.request_id, payload.request, count)
            self.outbox.put(OutgoingMessage(message.request_id, "result", result))

    def stop(self) -> None:
        self._stop.set()
        self.inbox.put(IncomingMessage("", "new_request"))

    def abort(self, request_id: str) -> None: ...


class Summing(Emitter):
    """Adds up the chunks of a stream and echoes each to the caller; its result comes at the stream's end."""

    def start(self) -> None:
        sums: dict[str, int] = {}
        payloads: dict[str, StagePayload] = {}
        ended: set[str] = set()
        while not self._stop.is_set():
            message = self.inbox.get()
            request_id = message.request_id
            if message.type == "stream_chunk":
                item = message.data
                assert item.chunk_id == item.data["n"]
                sums[request_id] = sums.get(request_id, 0) + item.data["n"]
                self.outbox.put(OutgoingMessage(request_id, "stream", item.data["n"]))
            elif message.type == "stream_done":
                ended.add(request_id)
            elif message.data is not None:
                payloads[request_id] = message.data
            if request_id in ended and request_id in payloads:
                payload = payloads.pop(request_id)
                result = StagePayload(request_id, payload.request, sums.pop(request_id, 0))
                self.outbox.put(OutgoingMessage(request_id, "result", result))


@both_ways
async def test_streams_between_stages_and_to_the_caller(tmp_path: Path, together: bool) -> None:
    stages = {
        "think": {"scheduler": Emitter(), "stream_targets": ["sum"], "next": ["count", "sum"]},
        "count": {"scheduler": SimpleScheduler(lambda p: p), "terminal": True},
        "sum": {"scheduler": Summing(), "terminal": True, "can_accept_stream_before_payload": True},
    }
    async with pipeline(tmp_path, stages, together=together) as run:

        async def one(request_id: str, count: int) -> None:
            got = [m async for m in run.coordinator.stream(request_id, count)]
            chunks = [m for m in got if isinstance(m, StreamMessage)]
            assert [m.chunk for m in chunks if m.from_stage == "think"] == [str(n) for n in range(count)]
            assert [m.chunk for m in chunks if m.from_stage == "sum"] == list(range(count))
            last = got[-1]
            assert isinstance(last, CompleteMessage)
            assert last.result == {"count": count, "sum": sum(range(count))}

        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(one(f"r{i}", 5 * i) for i in range(20)))
        await run.settled()


async def test_one_bad_request_leaves_the_others_alone(tmp_path: Path) -> None:
    def compute(payload: StagePayload) -> StagePayload:
        match payload.data["raw_inputs"]:
            case "raise":
                raise ValueError("bad request")
            case "fault":
                raise RequestError("no such voice", param="voice")
            case "unsendable":
                return StagePayload(payload.request_id, payload.request, {"f": lambda: None})
        return payload

    stages = {
        "a": {"scheduler": SimpleScheduler(compute), "next": "b"},
        "b": {"scheduler": SimpleScheduler(lambda p: p), "terminal": True},
    }
    async with pipeline(tmp_path, stages) as run:
        inputs = ["fine", "raise", "fault", "unsendable"] * 10
        results = await asyncio.gather(
            *(run.submit(f"r{i}", text) for i, text in enumerate(inputs)), return_exceptions=True
        )
        for text, result in zip(inputs, results, strict=True):
            if text == "fine":
                assert result == {"raw_inputs": "fine"}
            elif text == "fault":
                assert isinstance(result, RequestError)
                assert result.param == "voice"
            else:
                assert isinstance(result, RuntimeError)
                assert "stage 'a'" in str(result)
        await run.settled()


async def test_a_result_that_cannot_be_sent_is_its_requests_error(tmp_path: Path) -> None:
    def compute(payload: StagePayload) -> Any:
        return (lambda: None) if payload.data["raw_inputs"] else 1

    stages = {"a": {"scheduler": SimpleScheduler(compute), "terminal": True}}
    async with pipeline(tmp_path, stages) as run:
        with pytest.raises(RuntimeError, match="stage 'a'"):
            await run.submit("bad", True)
        assert await run.submit("good", False) == 1


async def test_an_abort_stops_running_and_waiting_work(tmp_path: Path) -> None:
    entered, cancelled = threading.Event(), threading.Event()
    ran: list[str] = []

    async def compute(payload: StagePayload) -> StagePayload:
        ran.append(payload.request_id)
        if payload.data["raw_inputs"] == "slow":
            entered.set()
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.set()
        return payload

    stages = {
        "a": {"scheduler": SimpleScheduler(lambda p: p), "next": "b"},
        "b": {"scheduler": SimpleScheduler(compute), "terminal": True},
    }
    async with pipeline(tmp_path, stages) as run:
        slow = asyncio.create_task(run.submit("slow", "slow"))
        await asyncio.to_thread(entered.wait, WAIT_S)
        waiting = asyncio.create_task(run.submit("waiting", "quick"))
        await asyncio.sleep(0.05)
        assert await run.coordinator.abort("waiting")
        await asyncio.sleep(0.05)
        assert await run.coordinator.abort("slow")
        for task in (slow, waiting):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await asyncio.to_thread(cancelled.wait, WAIT_S)
        assert await run.submit("after", "quick") == {"raw_inputs": "quick"}
        assert ran == ["slow", "after"]
        await run.settled()


async def test_an_aborted_fan_in_keeps_nothing(tmp_path: Path) -> None:
    gate = threading.Event()

    def held(payload: StagePayload) -> StagePayload:
        gate.wait(WAIT_S)
        return adding("right")._compute(payload)

    handler = AggregatedInput({"left", "right"}, merge)
    stages = {
        "split": {"scheduler": adding("split"), "next": ["left", "right"]},
        "left": {"scheduler": adding("left"), "next": "join"},
        "right": {"scheduler": SimpleScheduler(held), "next": "join"},
        "join": {"scheduler": adding("join"), "input_handler": handler, "terminal": True},
    }
    async with pipeline(tmp_path, stages) as run:
        task = asyncio.create_task(run.submit("r", {}))
        async with asyncio.timeout(WAIT_S):
            while "r" not in handler._received:
                await asyncio.sleep(0.005)
        assert await run.coordinator.abort("r")
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        assert (await run.submit("s", {}))["path"][-1] == "join"
        assert handler._received == {}
        await run.settled()


async def test_several_workers_share_a_stage(tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=WAIT_S)

    def compute(payload: StagePayload) -> str:
        if payload.data["raw_inputs"] == "meet":
            together.wait()
        return threading.current_thread().name

    workers = WorkerPool([SimpleScheduler(compute), SimpleScheduler(compute)])
    stages = {"a": {"scheduler": workers, "terminal": True}}
    async with pipeline(tmp_path, stages) as run:
        names = await asyncio.gather(run.submit("r", "meet"), run.submit("s", "meet"))
        assert len(set(names)) == 2
        request = OmniRequest("x", metadata={"session_id": "one"})
        assert len({await run.submit(f"t{i}", request) for i in range(5)}) == 1
        await run.settled()


async def test_a_crashed_scheduler_fails_its_requests_by_name(tmp_path: Path) -> None:
    def compute(payload: StagePayload) -> StagePayload:
        raise SystemExit(7)

    stages = {
        "a": {"scheduler": SimpleScheduler(lambda p: p), "next": "b"},
        "b": {"scheduler": SimpleScheduler(compute), "terminal": True},
    }
    async with pipeline(tmp_path, stages) as run:
        with pytest.raises(RuntimeError, match=r"stage 'b': the scheduler crashed: SystemExit"):
            await run.submit("r")


async def test_nothing_is_left_after_many_requests_of_every_kind(tmp_path: Path) -> None:
    def compute(payload: StagePayload) -> StagePayload:
        if payload.data["raw_inputs"] % 5 == 1:
            raise ValueError("every fifth fails")
        data = {"raw_inputs": payload.data["raw_inputs"], "big": np.zeros(20_000, "f4")}
        return StagePayload(payload.request_id, payload.request, data)

    def strip(payload: StagePayload) -> StagePayload:
        return StagePayload(payload.request_id, payload.request, {"path": (payload.data["raw_inputs"],)})

    handler = AggregatedInput({"left", "right"}, merge)
    stages = {
        "split": {"scheduler": SimpleScheduler(compute), "next": ["left", "right"]},
        "left": {"scheduler": SimpleScheduler(strip), "next": "join"},
        "right": {"scheduler": SimpleScheduler(strip), "next": "join"},
        "join": {"scheduler": adding("join"), "input_handler": handler, "terminal": True},
    }
    async with pipeline(tmp_path, stages) as run:

        async def one(number: int) -> str:
            task = asyncio.create_task(run.submit(f"r{number}", number))
            if number % 5 == 2:
                await asyncio.sleep(0.001 * (number % 7))
                await run.coordinator.abort(f"r{number}")
            try:
                assert (await task)["path"] == ({"left": (number,), "right": (number,)}, "join")
                return "completed"
            except RuntimeError:
                return "failed"
            except asyncio.CancelledError:
                return "aborted"

        outcomes = await asyncio.gather(*(one(number) for number in range(200)))
        assert outcomes.count("failed") >= 35
        assert outcomes.count("completed") >= 120
        await run.settled()
        assert handler._received == {}
        assert run.coordinator.health()["total_requests"] == 0
        load = run.coordinator.get_load()
        assert load["completed"] + load["failed"] + load["aborted"] == 200
        async with asyncio.timeout(WAIT_S):  # Until the last view of any payload is gone.
            while any(holds(stage) for stage in run.stages.values()):
                await asyncio.sleep(0.01)
