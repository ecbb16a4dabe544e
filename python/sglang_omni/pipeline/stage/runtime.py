"""Stage: the I/O shell around a scheduler.

    control plane -> a queue per source -> input handler -> scheduler.inbox      (receiver.py)
    scheduler.outbox -> routing -> a queue per target -> edge -> control plane   (sender.py, edges/)

Everything but the scheduler runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Literal

from sglang_omni.compat.control_plane import StageLink, as_stage_link
from sglang_omni.config.plan.instances import stage_of
from sglang_omni.pipeline.stage.edges.coordinator import CoordinatorEdge
from sglang_omni.pipeline.stage.edges.edge import End, Item
from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.pipeline.stage.edges.relays import EdgeRelays
from sglang_omni.pipeline.stage.failures import error_text, is_shortage
from sglang_omni.pipeline.stage.input import DirectInput, InputHandler
from sglang_omni.pipeline.stage.profiler import StageProfiler
from sglang_omni.pipeline.stage.receiver import ItemReceiver
from sglang_omni.pipeline.stage.requests import ProgressReporter, RequestTable
from sglang_omni.pipeline.stage.scheduler_threads import SchedulerThreads
from sglang_omni.pipeline.stage.sender import ItemSender
from sglang_omni.pipeline.stage.stats import StatsReporter
from sglang_omni.pipeline.stage.wiring import GetNextFn, GetStreamDoneTargetsFn, ProjectFn, Wiring
from sglang_omni.pipeline.transport.control_plane import ControlPlaneClosed
from sglang_omni.proto import (
    DataReadyBatchMessage,
    DataReadyMessage,
    EndpointsMessage,
    FlushCacheMessage,
    Message,
    ProfilerStartMessage,
    ProfilerStopMessage,
    ProgressMessage,
    RequestError,
    ShutdownMessage,
    Unavailable,
)
from sglang_omni.relay.base import Relay
from sglang_omni.scheduling.messages import HasCache, HasWorkClock, Scheduler
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 3.0


class Stage:
    """One stage: receives, aggregates, feeds its scheduler, routes what comes out, streams and aborts.

    A failure of one request, message, payload or route is that request's error; the stage goes on.

    Args:
        name: The stage's instance: its name, or that of the replica it is, ``talker@r1``. The scheduler and
            the input handler get the names of other stages, not of their instances.
        role: ``single``, or ``leader`` in a tensor-parallel group. Followers run no Stage: the leader owns
            all I/O.
        gpu_id: The device the stage computes on, if any.
        control_plane: A StageControlPlane, or anything with the methods that ``as_stage_link`` asks for.
        input_handler: DirectInput unless given.
        relay: Carries payloads to and from other processes; without one, it is made from ``relay_config``:
            ``relay_type`` and the options of ``create_relay``.
        relays: Relays by edge, in place of ``relay``.
        scheduler: Runs the work; without one the stage hands payloads on as they are.
        can_accept_stream_before_payload: True if chunks may come before the payload of their request.
        is_terminal: True if the stage completes requests.

    The other arguments are those of ``Wiring``; ``local_dispatcher`` is its ``dispatcher``.
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
        self.stage_name = stage_of(name)
        self.role = role
        self.gpu_id = gpu_id
        self.control_plane = as_stage_link(control_plane)
        self.input_handler = input_handler or DirectInput()
        self.relays = relays or EdgeRelays.single(name, relay, relay_config)
        self.scheduler: Scheduler = (
            scheduler if scheduler is not None else SimpleScheduler(lambda payload: payload)
        )
        self.is_terminal = is_terminal
        self._threads = SchedulerThreads(name, self.scheduler, gpu_id)
        self._profiler = StageProfiler(name)
        coordinator = CoordinatorEdge(name, self.control_plane)
        clock = self.scheduler.work_clock if isinstance(self.scheduler, HasWorkClock) else None
        self._requests = RequestTable(ProgressReporter(name, self._report_progress), clock, coordinator.queue)
        self._stats = StatsReporter(
            name, self.scheduler, self.relays.all, coordinator.report, self._requests.active
        )
        self._report = coordinator.report
        self._sender = ItemSender(
            Wiring(
                name,
                get_next,
                endpoints or {},
                project_payload or {},
                tuple(stream_targets or ()),
                get_stream_done_targets,
                frozenset(same_gpu_targets or ()),
                # Without a dispatcher they are reached as those of other processes are.
                frozenset((same_process_targets or ()) if local_dispatcher else ()),
                local_dispatcher or LocalStageDispatcher(),
            ),
            self.control_plane,
            self.relays,
            self._requests,
            coordinator,
            self._threads.outbox,
            fail=self._fail,
        )
        self._receiver = ItemReceiver(
            name,
            self._requests,
            self.relays,
            self.scheduler.inbox,
            self.input_handler,
            streams_may_start=can_accept_stream_before_payload,
            control=self._control,
            fail=self._fail,
            resume=self.control_plane.resume,
        )
        self._shutdown: asyncio.Future[None] | None = None
        self._stopped = False

    @property
    def tcp_endpoint(self) -> str | None:
        """Where stages on other hosts reach it, once it has started; None if none may."""
        return self.control_plane.tcp_endpoint

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the control plane and starts the scheduler in a thread of its own."""
        if self._shutdown is not None:
            return
        await self.control_plane.start()
        self._shutdown = asyncio.get_running_loop().create_future()
        self.control_plane.on_lost(self._lose)
        self._sender.listen()
        self._threads.start()
        # The limits of what it holds are known before its first request.
        self._stats.touch()

    async def run(self) -> None:
        """Serves until a ShutdownMessage arrives or the task is cancelled.

        Raises:
            RuntimeError: The scheduler's ``start`` raised. The stage's requests have failed by then, and
                the scheduler was stopped; the rest is the supervisor's matter.
            Exception: The control plane broke.
        """
        await self.start()
        assert self._shutdown is not None
        crashed = self._threads.crashed
        aborts = asyncio.create_task(self._receive_aborts(), name=f"{self.name}-aborts")
        tasks = [aborts]
        ends: set[asyncio.Future[Any]] = {self._shutdown, crashed}
        if (receiving := self.control_plane.deliver_to(self._receiver.take)) is not None:
            tasks.append(receiving)
            ends.add(receiving)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if crashed.done():
                crash = error_text(crashed.result())
                lost = Unavailable(f"stage {self.name!r}: the scheduler crashed: {crash}")
                for request_id in list(self._requests.active):
                    self._fail(request_id, lost)
                raise RuntimeError(
                    f"Scheduler thread of {self.name!r} crashed: {crash}"
                ) from crashed.result()
            if receiving is not None and receiving.done():
                receiving.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.stop()

    async def stop(self) -> None:
        """Stops the scheduler, sends what is already routed, and closes everything. Idempotent."""
        if self._shutdown is None or self._stopped:
            return
        self._stopped = True
        self.scheduler.stop()
        self._receiver.stop()
        # From here on the scheduler does not wait to emit: it must come to its end.
        outbox = self._threads.outbox
        outbox.unlisten()
        await self._threads.join(_STOP_TIMEOUT_S)
        self._sender.route(outbox.take(sys.maxsize))
        try:
            await asyncio.wait_for(self._sender.drain(), _STOP_TIMEOUT_S)
        except TimeoutError:
            logger.warning("Stage %s: dropped %d unsent messages", self.name, self._sender.backlog)
        await self._profiler.finish()
        self._stats.close()
        await self._receiver.close()
        await self._sender.close()
        self.control_plane.close()
        self.relays.close()

    def stats(self) -> dict[str, float]:
        """The numbers of its scheduler and relays, as ``/metrics`` shows them."""
        return self._stats.read()

    # --- messages and items -----------------------------------------------------------------------

    def receive(self, item: Item) -> Coroutine[Any, Any, None]:
        """Takes an item of a stage in this process. Waits while this stage is full."""
        return self._receiver.receive(item)

    async def _on_data_ready(self, message: DataReadyMessage) -> None:
        """Takes one message of another stage. Kept for the contract."""
        await self._receiver.read(message)

    async def _on_stream_chunk(self, message: DataReadyMessage) -> None:
        """Takes one chunk of another stage's stream. Kept for the contract."""
        await self._receiver.read(message)

    def _control(self, message: Message) -> bool:
        """Acts on a message that brings no work. Returns False if no more are to come."""
        match message:
            case ShutdownMessage():
                if self._shutdown is not None and not self._shutdown.done():
                    self._shutdown.set_result(None)
                return False
            case EndpointsMessage():
                self._sender.move(message.endpoints)
            case FlushCacheMessage():
                if isinstance(self.scheduler, HasCache):
                    self.scheduler.flush_cache()
            case ProfilerStartMessage():
                self._profiler.start(message)
            case ProfilerStopMessage():
                self._profiler.stop(message)
            case _:
                logger.warning("Stage %s ignored a %s message", self.name, message.type)
        return True

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

    # --- ends of requests -------------------------------------------------------------------------

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

    def _report_progress(self, message: ProgressMessage) -> None:
        self._report(message)
        self._stats.touch()

    def _lose(self, target: str, message: Message, reason: str) -> None:
        lost = [message] if isinstance(message, DataReadyMessage) else []
        if isinstance(message, DataReadyBatchMessage):
            lost += message.messages()
        for each in lost:
            self._fail(each.request_id, Unavailable(f"sending to {target!r} failed: {reason}"))

    def _fail(self, request_id: str, error: object) -> None:
        """Ends the request here and tells the coordinator, which ends it everywhere.

        Args:
            error: The exception as it was raised, or the text.
        """
        info: dict[str, Any] | None = None
        if isinstance(error, RequestError | Unavailable):
            info = error.to_dict()
        elif isinstance(error, BaseException):
            logger.error("Stage %s: request %s failed", self.name, request_id, exc_info=error)
            if is_shortage(error):
                info = Unavailable(error_text(error)).to_dict()
            error = error_text(error)
        if self._requests.is_dropped(request_id):
            return
        self.abort(request_id)
        self._sender.fail(End(request_id, self.name, str(error), error_info=info))
