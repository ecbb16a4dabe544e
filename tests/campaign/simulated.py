"""A pipeline of the real coordinator and stages in virtual time: a, then b and c at once, then d.

While a computes it streams parts to d. d waits for both payloads and for the end of that stream, and streams
its answer to the caller.

Simulated are the sockets, the relay's memory, the schedulers' work, and the supervisor, which starts a stage
again that was killed or crashed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any, cast

from campaign.asks import PARTS, part_of, pieces_of, text_of
from campaign.network import Network, current_process
from campaign.rest import left_in
from sglang_omni._core import PayloadPlan
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.stage.input import AggregatedInput
from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.pipeline.transport.control_plane import StageControlPlane
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.relay.base import Relay, RelayReadError
from sglang_omni.relay.put_ledger import Put, PutLedger
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.recent_ids import RecentIds

STAGES = ("a", "b", "c", "d")
NEXT = {"a": ["b", "c"], "b": "d", "c": "d", "d": None}
# An edge may have so many bytes under way: a few payloads.
CREDIT_BYTES = 40_000
# Requests that a scheduler computes at once.
AT_ONCE = 3


class SimulatedRelay(Relay):
    """Memory that other processes read while its owner lives; the credits are those of the real ledger."""

    inline_limit = 256
    packs = lends = trusted = True

    def __init__(self, owner: str, world: World) -> None:
        self.owner, self._world = owner, world
        self.puts = PutLedger(owner, CREDIT_BYTES, timeout=30.0)
        world.relays[owner] = self

    async def put_payload(self, plan: PayloadPlan, request_id: str, edge: str | None = None) -> Put:
        await self.puts.take_credit(edge or "", plan.nbytes, request_id)
        ticket = self.puts.issue(plan.to_bytes(), plan.nbytes, edge or "", plan.nbytes, request_id)
        return Put(self.puts, ticket, {"owner": self.owner, "ticket": ticket.number})

    async def get_payload(self, metadata: Mapping[str, Any]) -> Any:
        await asyncio.sleep(self._world.draw.expovariate(1 / 0.0005))
        sender = self._world.relays.get(metadata["owner"])
        ticket = None if sender is None else sender.puts.ticket(metadata["ticket"])
        if sender is None or ticket is None:
            raise RelayReadError(f"{metadata['owner']} does not have it any more")
        packed = bytearray(ticket.source)
        sender.puts.finish(ticket.number)
        return packed

    async def put_async(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("it packs")

    get_async = put_async

    def cleanup(self, request_id: str) -> None:
        self.puts.revoke(request_id)

    def close(self) -> None:
        self._world.relays.pop(self.owner, None)
        self.puts.close()

    def usage(self) -> dict[str, int]:
        return self.puts.usage()


class _Inbox(Inbox[IncomingMessage]):
    def __init__(self, on_put: Callable[[], None]) -> None:
        super().__init__()
        self._on_put = on_put

    def put(self, item: IncomingMessage, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self._on_put()


@dataclass
class _Waiting:
    """What d has of a request."""

    payload: StagePayload | None = None
    parts: list[bytes] = field(default_factory=list)
    is_whole: bool = False


class SimulatedScheduler:
    """Computes in the event loop, by timers. What goes wrong is in a request's ``faults``, by stage."""

    def __init__(self, stage: str, draw: random.Random) -> None:
        self.inbox: Queue[IncomingMessage] = _Inbox(self._look_soon)
        self.outbox: Queue[OutgoingMessage] = Outbox()
        self.crashed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.computing: dict[str, asyncio.TimerHandle | None] = {}
        self._stage, self._draw = stage, draw
        self._loop = asyncio.get_running_loop()
        self._aborted = RecentIds()
        self._looks = False
        # What has come of requests that wait for more, in d.
        self.waiting: dict[str, _Waiting] = {}

    def start(self) -> None:
        """Everything happens in the event loop."""

    def stop(self) -> None:
        for timer in self.computing.values():
            if timer is not None:
                timer.cancel()
        self.computing.clear()
        self.waiting.clear()

    def abort(self, request_id: str) -> None:
        self._aborted.add(request_id)
        self.waiting.pop(request_id, None)
        if (timer := self.computing.pop(request_id, None)) is not None:
            timer.cancel()
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._looks:
            self._looks = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looks = False
        while len(self.computing) < AT_ONCE:
            try:
                message = self.inbox.get_nowait()
            except Empty:
                return
            if message.request_id in self._aborted:
                continue
            if self._stage == "d":
                self._gather(message)
            else:
                self._begin(message.data)

    def _gather(self, message: IncomingMessage) -> None:
        waiting = self.waiting.setdefault(message.request_id, _Waiting())
        if message.type == "stream_chunk":
            assert message.data.chunk_id == len(waiting.parts)
            waiting.parts.append(message.data.data)
        elif message.type == "stream_done":
            waiting.is_whole = True
        else:
            waiting.payload = message.data
        if waiting.payload is not None and waiting.is_whole:
            del self.waiting[message.request_id]
            waiting.payload.data["parts"] = [part[0] for part in waiting.parts]
            self._begin(waiting.payload)

    def _begin(self, payload: StagePayload) -> None:
        fault = payload.request.inputs.get("faults", {}).get(self._stage)
        if fault == "crash":
            if not self.crashed.done():
                self.crashed.set_result(RuntimeError("the scheduler's own end"))
            return
        seconds = self._draw.expovariate(1 / 0.005)
        if fault == "hang":
            self.computing[payload.request_id] = None
        elif fault is not None:
            self._after(seconds, payload.request_id, lambda: self._fail(payload, fault))
        elif self._stage == "d":
            self._speak(payload, deque(pieces_of(payload.request.inputs["value"])))
        elif self._stage == "a":
            self._stream(payload, 0)
        else:
            self._after(seconds, payload.request_id, lambda: self._finish(payload))

    def _stream(self, payload: StagePayload, number: int) -> None:
        seconds = self._draw.expovariate(1 / 0.002)
        if number == PARTS:
            self._after(seconds, payload.request_id, lambda: self._finish(payload))
            return
        part = part_of(payload.request.inputs, number)
        self.outbox.put(OutgoingMessage(payload.request_id, "stream", part))
        self._after(seconds, payload.request_id, lambda: self._stream(payload, number + 1))

    def _after(self, seconds: float, request_id: str, then: Callable[[], None]) -> None:
        self.computing[request_id] = self._loop.call_later(seconds, then)

    def _fail(self, payload: StagePayload, fault: str) -> None:
        error = (
            RequestError("too loud", param="volume") if fault == "refuse" else ZeroDivisionError("its own")
        )
        self._end(OutgoingMessage(payload.request_id, "error", error))

    def _speak(self, payload: StagePayload, left: deque[str]) -> None:
        if payload.request.params.get("stream") and left:
            self.outbox.put(OutgoingMessage(payload.request_id, "stream", {"text": left.popleft()}))
            seconds = self._draw.expovariate(1 / 0.002)
            self._after(seconds, payload.request_id, lambda: self._speak(payload, left))
            return
        seconds = self._draw.expovariate(1 / 0.005)
        self._after(seconds, payload.request_id, lambda: self._finish(payload))

    def _finish(self, payload: StagePayload) -> None:
        inputs, data = payload.request.inputs, payload.data
        if self._stage == "a":
            data = {"path": "a", "blob": bytes([inputs["value"] % 251]) * inputs["size"]}
        elif self._stage == "d":
            total = sum(data["blob"])
            data = {**data, "total": total, "text": text_of(inputs)}
            del data["blob"]
        else:
            data = {**data, "path": data["path"] + self._stage}
        self._end(
            OutgoingMessage(
                payload.request_id, "result", StagePayload(payload.request_id, payload.request, data)
            )
        )

    def _end(self, message: OutgoingMessage) -> None:
        self.computing.pop(message.request_id, None)
        self.outbox.put(message)
        self._look_soon()


class _Threads:
    """In place of a stage's threads."""

    def __init__(self, scheduler: SimulatedScheduler) -> None:
        self.outbox = cast(Outbox[OutgoingMessage], scheduler.outbox)
        self.crashed = scheduler.crashed

    def start(self) -> None:
        return None

    async def join(self, timeout: float) -> None:
        return None


def merge(received: Mapping[str, StagePayload]) -> StagePayload:
    first = received["b"]
    assert first.data["blob"] == received["c"].data["blob"]
    paths = {source: received[source].data["path"] for source in ("b", "c")}
    return StagePayload(first.request_id, first.request, {"paths": paths, "blob": first.data["blob"]})


class SimulatedProcess:
    """One stage in a process of its own, until it ends or is killed."""

    def __init__(self, stage: str, number: int, world: World) -> None:
        self.stage_name, self.name = stage, f"{stage}#{number}"
        self.is_killed = False
        self.ended = asyncio.Event()
        self._world = world
        token = current_process.set(self.name)
        try:
            self.scheduler = SimulatedScheduler(stage, world.draw)
            self.relay = SimulatedRelay(self.name, world)
            self.stage = Stage(
                stage,
                get_next=lambda request_id, output: NEXT[stage],
                control_plane=StageControlPlane(stage, f"sim://{stage}", "sim://completion", "sim://abort"),
                endpoints={name: f"sim://{name}" for name in STAGES},
                relay=self.relay,
                scheduler=self.scheduler,
                is_terminal=stage == "d",
                input_handler=AggregatedInput(("b", "c"), merge) if stage == "d" else None,
                can_accept_stream_before_payload=stage == "d",
                stream_targets=["d"] if stage == "a" else [],
            )
            # There are no threads in virtual time.
            self.stage._threads = cast(Any, _Threads(self.scheduler))
            self.task = asyncio.get_running_loop().create_task(self.stage.run(), name=self.name)
            self.task.add_done_callback(lambda _: self.ended.set())
        finally:
            current_process.reset(token)

    def kill(self) -> None:
        """Nothing that it would still do reaches another process."""
        self.is_killed = True
        self.ended.set()
        self._world.network.kill(self.name)
        self.relay.close()
        self.scheduler.stop()
        self.task.cancel()

    @property
    def leftovers(self) -> list[str]:
        """What it holds, which is nothing once no request runs."""
        return [
            f"{self.name} {what}: {held}"
            for what, held in (
                ("has requests", list(self.stage._requests.active)),
                ("computes", list(self.scheduler.computing)),
                ("has parts of", list(self.scheduler.waiting)),
                ("has not sent", self.stage._sender.backlog),
                ("has credit taken", {k: v["held"] for k, v in self.relay.puts.stats().items() if v["held"]}),
                ("has tickets", len(self.relay.puts)),
                ("waits for parts of", list(getattr(self.stage.input_handler, "_received", ()))),
            )
            if held
        ]


class World:
    """The whole pipeline, and its supervisor.

    Args:
        draw: Decides on everything that is drawn while it runs.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.network = Network(draw, prompt="sim://completion")
        self.relays: dict[str, SimulatedRelay] = {}
        self.processes: dict[str, SimulatedProcess] = {}
        self.coordinator = Coordinator("sim://completion", "sim://abort", "a", ["d"])
        self._numbers = dict.fromkeys(STAGES, 0)
        self._watching: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self.coordinator.start()
        for name in STAGES:
            self._launch(name)
            self.coordinator.register_stage(name, f"sim://{name}")

    async def stop(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for process in self.processes.values():
            process.kill()
        await asyncio.gather(*(each.task for each in self.processes.values()), return_exceptions=True)
        await self.coordinator.stop()

    def kill(self, stage: str) -> None:
        process = self.processes[stage]
        if not process.task.done():
            process.kill()

    def stall(self, stage: str, seconds: float) -> None:
        """Messages that a stage sends are late for a while."""
        name = self.processes[stage].name
        self.network.slow.add(name)
        asyncio.get_running_loop().call_later(seconds, self.network.slow.discard, name)

    def _launch(self, stage: str) -> None:
        self._numbers[stage] += 1
        process = self.processes[stage] = SimulatedProcess(stage, self._numbers[stage], self)
        task = asyncio.get_running_loop().create_task(self._supervise(process))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _supervise(self, process: SimulatedProcess) -> None:
        """Start the stage again once it has ended, as ``processes/supervisor.py`` does."""
        await process.ended.wait()
        reason = "was killed" if process.is_killed else "exited with status 1"
        if not process.is_killed:
            self.network.kill(process.name)
            self.relays.pop(process.name, None)
        stage = process.stage_name
        self.coordinator.stage_down([stage], f"stage {stage!r}: process {stage!r} {reason}")
        await asyncio.sleep(self.draw.uniform(0.1, 2.0))
        self._launch(stage)
        self.coordinator.register_stage(stage, f"sim://{stage}")
        self.coordinator.stage_up([stage])

    @property
    def leftovers(self) -> list[str]:
        """What is held although no request runs."""
        found = left_in(self.coordinator)
        return found + [each for process in self.processes.values() for each in process.leftovers]


@contextlib.asynccontextmanager
async def running(draw: random.Random) -> Any:
    world = World(draw)
    with world.network.in_place_of_sockets():
        await world.start()
        try:
            yield world
        finally:
            await world.stop()
