"""Stage: the I/O shell around a scheduler.

    control plane -> a lane per source -> input handler -> scheduler.inbox
    scheduler.outbox -> routing -> a lane per target -> control plane, relay, local dispatch

Everything but the scheduler runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Collection, Mapping
from typing import Any, Literal

from sglang_omni.config.instances import stage_of
from sglang_omni.pipeline.stage.backpressure import Room
from sglang_omni.pipeline.stage.edges import relay_io
from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.pipeline.stage.edges.queue import Lane
from sglang_omni.pipeline.stage.edges.relays import EdgeRelays
from sglang_omni.pipeline.stage.input import DirectInput, InputHandler
from sglang_omni.pipeline.stage.intake import Intake
from sglang_omni.pipeline.stage.outgoing import (
    GetNextFn,
    GetStreamDoneTargetsFn,
    Outgoing,
    ProjectFn,
    StageLink,
)
from sglang_omni.pipeline.stage.profiler import StageProfiler
from sglang_omni.pipeline.stage.requests import RequestRecord
from sglang_omni.pipeline.stage.scheduler_threads import SchedulerThreads
from sglang_omni.pipeline.stage.stats import StatsReporter
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.pipeline.transport.control_plane import ControlPlaneClosed
from sglang_omni.proto import (
    CompleteMessage,
    DataReadyMessage,
    EndpointsMessage,
    FlushCacheMessage,
    Message,
    ProfilerStartMessage,
    ProfilerStopMessage,
    Replicas,
    RequestError,
    ShutdownMessage,
    StagePayload,
    SubmitMessage,
)
from sglang_omni.relay.base import Relay
from sglang_omni.scheduling.messages import OutgoingMessage, Scheduler
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

logger = logging.getLogger(__name__)

# Messages routed in a row before the loop's other work gets its turn.
_OUTBOX_BATCH = 64
# Messages routed but not sent, at which the outbox is left to fill up, and at which draining goes on.
_BACKLOG_HIGH = 4096
_BACKLOG_LOW = 1024
_STOP_TIMEOUT_S = 3.0


class Stage:
    """One stage: receives, aggregates, feeds its scheduler, routes what comes out, streams and aborts.

    A failure of one request, message, payload or route is that request's error; the stage goes on.

    Args:
        name: The stage's name, or that of the replica it is: ``talker@r1``. What the scheduler and the input
            handler are told of other stages goes by the stages' names.
        role: ``single``, or ``leader`` or ``follower`` in a tensor-parallel group. A follower computes
            what its control plane hands it and sends nothing: the leader owns all I/O.
        get_next: ``get_next(request_id, output)`` names the next stage or stages; None completes the request.
        gpu_id: The device the stage computes on, if any.
        endpoints: ``{stage: endpoint}`` of the stages this one may send to, and of their replicas; empty
            where an EndpointsMessage is to tell it.
        control_plane: Sockets, or anything with their methods.
        input_handler: DirectInput unless given.
        relay: Carries payloads to and from other processes; made from ``relay_config`` where that is given
            instead: ``relay_type`` and the options of ``create_relay``.
        relays: Carry them by edge, where one relay does not do for all; in place of ``relay``.
        scheduler: Runs the work; without one the stage hands payloads on as they are.
        project_payload: ``{target: function}`` that reduces a payload to what the target needs.
        stream_targets: Where untargeted stream chunks go; to the caller where there are none.
        get_stream_done_targets: ``f(request_id, output)`` names the stream targets whose stream ends with
            the result, None for none; all of them without it.
        same_gpu_targets: Stream targets, or replicas of them, on the same GPU, in other processes.
        same_process_targets: Targets, or replicas of them, in this process, reached through
            ``local_dispatcher``.
        can_accept_stream_before_payload: Whether chunks may come before the payload of their request.
        is_terminal: Whether the stage completes requests.
    """

    def __init__(
        self,
        name: str,
        role: Literal["single", "leader", "follower"] = "single",
        *,
        get_next: GetNextFn,
        control_plane: StageLink,
        gpu_id: int | None = None,
        endpoints: Mapping[str, str] | None = None,
        input_handler: InputHandler | None = None,
        relay: Relay | None = None,
        relay_config: Mapping[str, Any] | None = None,
        relays: EdgeRelays | None = None,
        scheduler: Scheduler | None = None,
        project_payload: Mapping[str, ProjectFn] | None = None,
        stream_targets: Collection[str] | None = None,
        get_stream_done_targets: GetStreamDoneTargetsFn | None = None,
        same_gpu_targets: Collection[str] | None = None,
        same_process_targets: Collection[str] | None = None,
        local_dispatcher: LocalStageDispatcher | None = None,
        can_accept_stream_before_payload: bool = False,
        is_terminal: bool = False,
    ) -> None:
        self.name = name
        self.role = role
        self.gpu_id = gpu_id
        self.control_plane = control_plane
        self.input_handler = input_handler or DirectInput()
        self.relays = relays or EdgeRelays.single(name, relay, relay_config)
        self.scheduler: Scheduler = (
            scheduler if scheduler is not None else SimpleScheduler(lambda payload: payload)
        )
        self.is_terminal = is_terminal
        self._outgoing = Outgoing(
            name,
            control_plane=control_plane,
            relays=self.relays,
            get_next=get_next,
            endpoints=endpoints or {},
            project_payload=project_payload or {},
            stream_targets=stream_targets or [],
            get_stream_done_targets=get_stream_done_targets,
            same_gpu_targets=same_gpu_targets or (),
            same_process_targets=same_process_targets or (),
            local_dispatcher=local_dispatcher,
            fail=self._fail,
            on_sent=self._on_sent,
            clock=getattr(self.scheduler, "work_clock", None),
        )
        self._requests = self._outgoing.requests
        self._stats = StatsReporter(name, self.scheduler, self.relays.all, self._outgoing.stats)
        self._profiler = StageProfiler(name)
        self._receive_lanes: dict[str, Lane] = {}
        self._room = Room(
            self.scheduler.inbox, lambda: sum(map(len, self._receive_lanes.values())), self._on_room
        )
        self._intake = Intake(
            self._requests,
            self._room,
            self.input_handler,
            streams_may_start=can_accept_stream_before_payload,
            fail=self._fail_with,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = SchedulerThreads(name, self.scheduler)
        self._outbox = self._threads.outbox
        self._outbox_waits = False
        self._shutdown: asyncio.Future[None] | None = None

    @property
    def tcp_endpoint(self) -> str | None:
        """Where stages on other hosts reach it, once it has started; None where none is to."""
        return getattr(self.control_plane, "tcp_endpoint", None)

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the control plane and starts the scheduler in a thread of its own."""
        if self._loop is not None:
            return
        await self.control_plane.start()
        self._loop = asyncio.get_running_loop()
        self._shutdown = self._loop.create_future()
        if (on_lost := getattr(self.control_plane, "on_lost", None)) is not None:
            on_lost(self._lose)
        self._outbox.listen(self._call_take_outbox)
        self._threads.start()
        # What it holds at the most is known before its first request.
        self._stats.touch()

    async def run(self) -> None:
        """Serves until a ShutdownMessage arrives or the task is cancelled.

        Raises:
            RuntimeError: The scheduler's ``start`` raised. The stage's requests have failed by then, and
                the scheduler was stopped; what to do about it is the supervisor's matter.
        """
        await self.start()
        crashed = self._threads.crashed
        aborts = asyncio.create_task(self._receive_aborts(), name=f"{self.name}-aborts")
        work = asyncio.create_task(self._receive_work(), name=f"{self.name}-work")
        try:
            ends: set[asyncio.Future[Any]] = {work, crashed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if crashed.done():
                crash = crashed.result()
                self._fail_all(f"the scheduler crashed: {_text(crash)}")
                raise RuntimeError(f"Scheduler thread of {self.name!r} crashed: {_text(crash)}") from crash
            work.result()
        finally:
            for task in (aborts, work):
                task.cancel()
            await asyncio.gather(aborts, work, return_exceptions=True)
            await self.stop()

    async def stop(self) -> None:
        """Stops the scheduler, sends what is already routed, and closes everything. Idempotent."""
        if self._loop is None:
            return
        self.scheduler.stop()
        self._room.close()
        # From here on nothing that is emitted waits for room: the scheduler is to come to its end.
        self._outbox.unlisten()
        await self._threads.join(_STOP_TIMEOUT_S)
        self._route(self._outbox.take(sys.maxsize))
        try:
            await asyncio.wait_for(self._outgoing.drain(), _STOP_TIMEOUT_S)
        except TimeoutError:
            logger.warning("Stage %s: dropped %d unsent messages", self.name, self._outgoing.backlog)
        await self._profiler.finish()
        self._stats.close()
        self._loop = None
        for lane in self._receive_lanes.values():
            await lane.close()
        await self._outgoing.close()
        self.control_plane.close()
        self.relays.close()

    def stats(self) -> dict[str, float]:
        """What its scheduler and relay count, as ``/metrics`` shows it."""
        return self._stats.read()

    # --- receiving --------------------------------------------------------------------------------

    async def _receive_work(self) -> None:
        """Until a ShutdownMessage comes."""
        deliver_to = getattr(self.control_plane, "deliver_to", None)
        if deliver_to is not None:
            deliver_to(self._take_work)
            assert self._shutdown is not None
            await self._shutdown
            return
        assert self._shutdown is not None
        while not self._shutdown.done():
            if not self._take_work(await self.control_plane.recv()):
                await self._room.wait_to_receive()

    def _take_work(self, message: Message) -> bool:
        """Whether to go on with the next message now."""
        if isinstance(message, ShutdownMessage):
            if self._shutdown is not None and not self._shutdown.done():
                self._shutdown.set_result(None)
            return False
        try:
            self._handle(message)
        except Exception:
            request_id = getattr(message, "request_id", "-")
            logger.exception(
                "Stage %s: a %s message of request %s was lost", self.name, message.type, request_id
            )
        return self._room.may_receive()

    def _on_room(self) -> None:
        if (resume := getattr(self.control_plane, "resume", None)) is not None:
            resume()

    def _handle(self, message: Message) -> None:
        self._stats.touch()
        match message:
            case DataReadyMessage() if not self.relays.expects(message.from_stage):
                self._fail(message.request_id, f"no edge leads from {message.from_stage!r} to {self.name!r}")
            case DataReadyMessage():
                lane = self._receive_lanes.get(message.from_stage)
                if lane is None:
                    lane = Lane(f"{message.from_stage}->{self.name}", self._room.check)
                    self._receive_lanes[message.from_stage] = lane
                lane.put(message.request_id, self._on_data_ready, message)
            case SubmitMessage():
                self._intake.payload(message.request_id, None, message.data, replicas=message.replicas)
            case EndpointsMessage():
                self._outgoing.move(message.endpoints)
            case FlushCacheMessage():
                flush = getattr(self.scheduler, "flush_cache", None)
                if flush is not None:
                    flush()
            case ProfilerStartMessage():
                self._profiler.start(message)
            case ProfilerStopMessage():
                self._profiler.stop(message)
            case _:
                logger.warning("Stage %s ignored a %s message", self.name, message.type)

    async def _receive_aborts(self) -> None:
        while True:
            try:
                message = await self.control_plane.recv_abort()
            except ControlPlaneClosed:
                return
            except Exception:
                logger.exception("Stage %s takes no aborts any more", self.name)
                return
            self.abort(message.request_id)

    async def _on_data_ready(self, message: DataReadyMessage) -> None:
        """One message of another stage, in the lane of that stage."""
        request_id, source, replicas = message.request_id, message.from_stage, message.replicas
        if message.error is not None or message.is_done:
            self._intake.end(request_id, source, message.error, replicas)
        elif message.chunk_id is not None:
            await self._on_stream_chunk(message)
        else:
            payload = await self._read(message, relay_io.read_payload, request_id)
            if payload is not None:
                self._intake.payload(request_id, source, payload, relay_io.relayed_bytes(message), replicas)

    async def _on_stream_chunk(self, message: DataReadyMessage) -> None:
        """One chunk of another stage's stream."""
        assert message.chunk_id is not None
        request_id, source = message.request_id, message.from_stage
        key = relay_io.stream_key(request_id, source, message.to_stage, message.chunk_id)
        read = await self._read(message, relay_io.read_stream_chunk, key)
        if read is not None:
            data, metadata = read
            item = StreamItem(message.chunk_id, data, stage_of(source), metadata)
            self._intake.chunk(request_id, source, item, relay_io.relayed_bytes(message), message.replicas)

    async def _read(self, message: DataReadyMessage, read: Any, key: str) -> Any:
        """What ``read`` returns; None where the request is not wanted any more, or could not be read."""
        request_id = message.request_id
        await self._room.wait()
        try:
            relay = self.relays.from_(message.from_stage)
            value = await read(relay, key, message.shm_metadata, trusted=message.trusted)
        except Exception as exc:  # noqa: BLE001  whatever the bytes hold, it is that request's failure
            self.relays.cleanup(request_id)
            self._fail(request_id, f"relay read failed: {_text(exc)}")
            return None
        # A dropped request's data was read all the same: that is what gives its slot back.
        return None if self._requests.is_dropped(request_id) else value

    async def receive_local_payload(
        self, request_id: str, from_stage: str, payload: StagePayload, replicas: Replicas = None
    ) -> None:
        """A payload of a stage in this process, as the object itself. Waits while this stage is full."""
        await self._room.wait()
        self._intake.payload(request_id, from_stage, payload, replicas=replicas)

    async def receive_local_stream_chunk(
        self,
        request_id: str,
        from_stage: str,
        chunk_id: int,
        data: Any,
        metadata: dict[str, Any] | None,
        replicas: Replicas = None,
    ) -> None:
        """A stream chunk of a stage in this process, as the object itself. Waits while this stage is full."""
        await self._room.wait()
        item = StreamItem(chunk_id, data, stage_of(from_stage), metadata)
        self._intake.chunk(request_id, from_stage, item, replicas=replicas)

    async def receive_local_stream_signal(
        self,
        request_id: str,
        from_stage: str,
        *,
        is_done: bool = False,
        error: str | None = None,
        replicas: Replicas = None,
    ) -> None:
        """The end of a stream of a stage in this process, or its failure."""
        if error is not None or is_done:
            self._intake.end(request_id, from_stage, error, replicas)

    # --- sending ----------------------------------------------------------------------------------

    def _call_take_outbox(self) -> None:
        """Called in the thread that emits."""
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(self._take_outbox)

    def _take_outbox(self) -> None:
        """Routes what the scheduler has emitted, unless too much is routed and not sent yet."""
        if self._loop is None:
            return
        self._outbox_waits = self._outgoing.backlog >= _BACKLOG_HIGH
        if self._outbox_waits:
            return
        batch = self._outbox.take(_OUTBOX_BATCH)
        self._route(batch)
        if len(batch) == _OUTBOX_BATCH:
            self._loop.call_soon(self._take_outbox)

    def _on_sent(self) -> None:
        if self._outbox_waits and self._outgoing.backlog <= _BACKLOG_LOW:
            self._take_outbox()

    def _route(self, batch: list[OutgoingMessage]) -> None:
        self._stats.touch()
        for out in batch:
            record = self._requests.active.get(out.request_id)
            if record is None:
                continue  # Aborted, failed or finished meanwhile.
            if self.role == "follower":
                self._follow(out, record)
                continue
            try:
                if out.type == "result":
                    self._outgoing.result(out.request_id, out.data)
                elif out.type == "stream":
                    self._outgoing.stream(out.request_id, out)
                else:
                    self._fail_with(out.request_id, out.data)
            except Exception as exc:  # noqa: BLE001  hooks and routes are the request's own failure
                self._fail_with(out.request_id, exc)

    def _follow(self, out: OutgoingMessage, record: RequestRecord) -> None:
        """A follower's results and errors are the leader's to send; only its books are kept."""
        if out.type != "stream":
            record.running -= 1
            if record.running <= 0:
                self._requests.finish(out.request_id)

    # --- ends -------------------------------------------------------------------------------------

    def abort(self, request_id: str) -> None:
        """Forgets a request, here and in the scheduler, and frees what it holds."""
        self._stats.touch()
        self._requests.drop(request_id)
        self.input_handler.cancel(request_id)
        try:
            self.relays.cleanup(request_id)
            self.scheduler.abort(request_id)
        except Exception:
            logger.exception("Stage %s: aborting request %s failed", self.name, request_id)

    def _lose(self, target: str, message: Message, reason: str) -> None:
        if isinstance(message, DataReadyMessage):
            self._fail(message.request_id, f"sending to {target!r} failed: {reason}")

    def _fail_all(self, error: str) -> None:
        for request_id in list(self._requests.active):
            self._fail(request_id, error)

    def _fail_with(self, request_id: str, error: object) -> None:
        """``error`` as it was raised, or its text."""
        if isinstance(error, RequestError):
            self._fail(request_id, str(error), error.to_dict())
        elif isinstance(error, BaseException):
            logger.error("Stage %s: request %s failed", self.name, request_id, exc_info=error)
            self._fail(request_id, _text(error))
        else:
            self._fail(request_id, str(error))

    def _fail(self, request_id: str, error: str, error_info: dict[str, Any] | None = None) -> None:
        """Ends the request here and tells the coordinator, which ends it everywhere."""
        if self._requests.is_dropped(request_id):
            return
        self.abort(request_id)
        self._outgoing.complete(
            CompleteMessage(request_id, self.name, success=False, error=error, error_info=error_info)
        )


def _text(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
