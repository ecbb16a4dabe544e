"""The coordinator sends requests to the entry stage, follows them through the stages, and answers callers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sglang_omni.config.plan.instances import instance_name, stage_of
from sglang_omni.pipeline.coordinator.admission import AdmissionQueues
from sglang_omni.pipeline.coordinator.inputs import InputStreams
from sglang_omni.pipeline.coordinator.instances import ReplicaTable, StageDirectory
from sglang_omni.pipeline.coordinator.requests import (
    InFlightCounts,
    MoreInput,
    RequestRegistry,
    RequestTrace,
    SettlingRequests,
    StageVisit,
    TakeChunk,
    TerminalStagesResolver,
    TrackedRequest,
    one_by_one,
    terminals_of,
)
from sglang_omni.pipeline.transport.control_plane import CoordinatorControlPlane
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.proto import (
    TRACED,
    AbortMessage,
    CompleteMessage,
    DuplicateRequest,
    FlushCacheMessage,
    Message,
    MoreInputMessage,
    OmniRequest,
    ProfilerStartMessage,
    ProfilerStopMessage,
    ProgressMessage,
    RequestError,
    RequestState,
    ShutdownMessage,
    StagePayload,
    StageTime,
    StatsMessage,
    StreamBatchMessage,
    StreamMessage,
    SubmitMessage,
    Unavailable,
)

logger = logging.getLogger(__name__)

# Seconds that a stream's result waits for stages that have streamed and not yet reported their end: their
# chunks come over connections of their own, and may be behind the result.
_LATE_CHUNKS_S = 1.0
# Chunks that wait for the reader of one stream; beyond it the request fails, as memory would run out.
_MAX_STREAM_BACKLOG = 10_000


class Coordinator:
    """Submits requests to the entry stage and answers them with what the terminal stages send.

    All methods must be called in one event loop.

    Args:
        completion_endpoint: Where stages send results; bound by ``start``.
        abort_endpoint: Where aborts are published; bound by ``start``.
        entry_stage: Name of the stage that receives new requests.
        terminal_stages: Names of the stages whose results make up a request's result. Without any, the
            first result completes the request.
        terminal_stages_resolver: Names the terminal stages of one request, a non-empty subset of
            ``terminal_stages``, or None for all of them.
        input_stage: The stage that takes what callers add to the input of requests that run, if there is one.
        stage_down_timeout: Seconds a new request waits for a stage of which no instance is up.
        keys: The run's keys; needed for ``tcp://`` sockets.
        host_address: The address of this host at which stages on other hosts reach the coordinator.

    Attributes:
        stages: Where each instance is reached.
        replicas: Which instances are up, and which replicas serve a request.
        admission: Which requests wait before they are sent in.
    """

    def __init__(
        self,
        completion_endpoint: str,
        abort_endpoint: str,
        entry_stage: str,
        terminal_stages: Sequence[str] | None = None,
        terminal_stages_resolver: TerminalStagesResolver | None = None,
        *,
        input_stage: str | None = None,
        stage_down_timeout: float = 60.0,
        keys: RunKeys | None = None,
        host_address: str | None = None,
    ) -> None:
        self.entry_stage = entry_stage
        self.terminal_stages = frozenset(terminal_stages or ())
        self.terminal_stages_resolver = terminal_stages_resolver
        self.stage_down_timeout = stage_down_timeout
        self.control_plane = CoordinatorControlPlane(
            completion_endpoint, abort_endpoint, keys=keys, host_address=host_address
        )
        self.stages = StageDirectory(self.control_plane)
        self.replicas = ReplicaTable()
        self.admission = AdmissionQueues(self.replicas)
        self._traces_steps = False
        self._on_visit: Callable[[StageVisit], None] = lambda visit: None
        self._requests = RequestRegistry()
        self._by_wire_id = self._requests.by_wire_id
        self._counts = InFlightCounts()
        self._settling = SettlingRequests(self._counts, self._abort_in_stages)
        self._inputs = InputStreams(input_stage, self.stages, self._counts, self._fail)
        self._stage_stats: dict[str, dict[str, float]] = {}
        # Why no request can be served any more; None while they can.
        self._lost: str | None = None
        self._running = False

    def register_stage(self, name: str, endpoint: str, *, process: str | None = None) -> None:
        """Makes an instance of a stage known.

        Args:
            name: The instance.
            endpoint: Where it receives work; empty if ``stages.move`` gives it once the instance is up.
            process: The process, or process replica, that it runs in. A request is given one replica of a
                process for all of its stages.
        """
        self.stages.add(name, endpoint)
        self.replicas.add(name, process)

    def unregister_stage(self, name: str) -> None:
        """Forgets a replica that has left; its stage has others."""
        self.stages.remove(name)
        self._stage_stats.pop(name, None)
        self.replicas.remove(name)

    async def start(self) -> None:
        """Binds the endpoints and accepts requests."""
        if self._running:
            return
        await self.control_plane.start()
        self._running = True
        self.control_plane.deliver_to(self._receive)
        self.control_plane.on_lost(self._lose)

    async def stop(self) -> None:
        """Fails the running requests and closes the endpoints. The stages go on: see ``shutdown_stages``."""
        self.fail_all("the pipeline was stopped")
        self._running = False
        self.control_plane.close()

    async def shutdown_stages(self, names: Collection[str] | None = None) -> None:
        """Asks these instances, or all of them, to finish and exit."""
        await self.stages.broadcast(ShutdownMessage(), names)

    async def start_profile(
        self, run_id: str, trace_path_template: str, activities: list[str] | None = None
    ) -> None:
        """Starts a torch profile in every stage; ``{run_id}`` and ``{stage}`` in the path are filled in.

        Args:
            activities: Of ``CPU`` and ``GPU``; None for all that a stage's process has.
        """
        await self.stages.broadcast(ProfilerStartMessage(run_id, trace_path_template, activities))

    async def stop_profile(self, run_id: str | None = None) -> None:
        """Makes the stages write the traces of this profile, or of the one that runs."""
        await self.stages.broadcast(ProfilerStopMessage(run_id))

    async def flush_cache(self) -> None:
        """Makes every stage drop what it has cached, unless a running request uses it."""
        await self.stages.broadcast(FlushCacheMessage())

    async def submit(self, request_id: str, request: OmniRequest | Any) -> Any:
        """Runs a request and returns its result: the one terminal stage's, or ``{stage: result}`` of several.

        Args:
            request_id: Unique among the running requests of its owner, ``request.metadata["owner"]``.
            request: An OmniRequest, or bare inputs for one.

        Raises:
            DuplicateRequest: The id is in use.
            ValueError: The entry stage is unknown.
            RequestError: A stage found the request itself at fault.
            RuntimeError: A stage failed; the text names it and says how. It is ``Unavailable`` if the cause
                is not the request.
            asyncio.CancelledError: The request was aborted.
        """
        return (await self.answer(request_id, request, None)).result

    async def answer(
        self, request_id: str, request: Any, take: TakeChunk | None, more: MoreInput | None = None
    ) -> CompleteMessage:
        """``submit``, with the stage that the result is from; ``take`` takes what is streamed before."""
        tracked = self._track(request_id, request, take)
        try:
            await self._send_in(tracked, request, more)
            return tracked.completed(await tracked.outcome)
        finally:
            self._leave(tracked)

    def stream(self, request_id: str, request: Any) -> AsyncIterator[StreamMessage | CompleteMessage]:
        """Runs a request and yields its chunks as they come, last a CompleteMessage with the result.

        Of a request whose ``params["stream"]`` is true the result has no sound that was in the chunks.

        Arguments and errors are those of ``submit``. Closing the iterator early aborts the request.
        """
        return one_by_one(self.stream_batches(request_id, request))

    async def stream_batches(
        self, request_id: str, request: OmniRequest | Any, more: MoreInput | None = None
    ) -> AsyncGenerator[list[StreamMessage] | CompleteMessage, None]:
        """``stream``, but a caller that is behind gets all chunks that have come at once, in order."""
        waiting: list[StreamMessage] = []
        changed = asyncio.Event()

        def take(message: StreamMessage) -> bool:
            waiting.append(message)
            changed.set()
            return len(waiting) <= _MAX_STREAM_BACKLOG

        tracked = self._track(request_id, request, take)
        tracked.outcome.add_done_callback(lambda _: changed.set())
        try:
            await self._send_in(tracked, request, more)
            while waiting or not tracked.outcome.done():
                await changed.wait()
                changed.clear()
                if batch := waiting.copy():
                    waiting.clear()
                    yield batch
            yield tracked.completed(await tracked.outcome)
        finally:
            self._leave(tracked)

    async def abort(self, request_id: str, *, owner: str | None = None) -> bool:
        """Stops the owner's request in every stage. Returns False if it is not running."""
        tracked = self._requests.running.get((owner, request_id))
        if tracked is None:
            return False
        self._end(tracked, RequestState.ABORTED)
        return True

    def stage_down(self, stage_names: Iterable[str], reason: str) -> None:
        """Fails the requests that these instances hold, and those sent to them until ``stage_up``.

        Other requests go on. New ones go to other replicas, or wait until every stage is up again.
        """
        names = list(stage_names)
        self.replicas.mark_down(names, reason)
        for name in names:
            self._stage_stats.pop(name, None)
        for wire_id in self._counts.held_by(names):
            if (tracked := self._by_wire_id.get(wire_id)) is not None:
                self._fail(tracked, Unavailable(reason))

    def stage_up(self, stage_names: Iterable[str]) -> None:
        """Gives these instances requests again."""
        self.replicas.mark_up(stage_names)

    async def drain(self, reason: str) -> None:
        """Refuses every later request with this reason, and returns when the running ones have ended."""
        self._lost = self._lost or reason
        if running := [tracked.outcome for tracked in self._requests.running.values()]:
            await asyncio.wait(running)

    def fail_all(self, reason: str) -> None:
        """Fails every running and every later request with this reason: the pipeline is lost."""
        self._lost = reason
        for tracked in list(self._requests.running.values()):
            self._fail(tracked, Unavailable(reason))

    def health(self) -> dict[str, Any]:
        """If requests can be served, why not and by which instances, and how many are running."""
        return {
            "running": self._running and self._lost is None,
            "error": self._lost,
            "stages": list(self.stages),
            **self.replicas.health(),
            "entry_stage": self.entry_stage,
            "total_requests": len(self._requests.running),
            "request_states": dict(self._requests.states()),
        }

    def get_load(self) -> dict[str, int]:
        """Requests by state: at the moment for pending and running, since the start for the final states."""
        return self._requests.load()

    def stage_load(self) -> dict[str, int]:
        """How many requests each instance holds."""
        return self._counts.load(self._by_wire_id, self.stages)

    def held_at(self, request_id: str, *, owner: str | None = None) -> list[str]:
        """The instances that hold the owner's request; none if it is not running."""
        tracked = self._requests.running.get((owner, request_id))
        return [] if tracked is None else self._counts.holders(tracked.wire_id)

    def ongoing_requests(self, instances: Iterable[str]) -> int:
        """How many requests are held by at least one of these instances."""
        return len(self._counts.held_by(instances))

    def is_drained(self, instances: Iterable[str]) -> bool:
        """True if no request needs these replicas."""
        names = list(instances)
        return not self.replicas.have_requests(names) and not self._counts.held_by(names)

    def stage_stats(self) -> dict[str, dict[str, float]]:
        """By instance, what its scheduler and its relay count, at most a twentieth of a second old.

        An instance that reports nothing is absent.
        """
        # A replica that has left may still have sent a report.
        return {stage: dict(stats) for stage, stats in self._stage_stats.items() if stage in self.stages}

    def timings(self, request_id: str, *, owner: str | None = None) -> dict[str, StageTime]:
        """Seconds in each stage that the owner's request has left, in pipeline order; empty if not known."""
        return self._requests.timings((owner, request_id), self.stages)

    def trace(self, request_id: str, *, owner: str | None = None) -> RequestTrace | None:
        """Where the owner's request was when, as far as reported; None if it is not known, or no longer."""
        return self._requests.trace((owner, request_id))

    def trace_steps(self, on: bool) -> None:
        """True if stages report the steps and hops of later requests."""
        self._traces_steps = on

    def watch_visits(self, seen: Callable[[StageVisit], None]) -> None:
        """Calls ``seen`` with each visit of a request to a stage, once it has ended."""
        self._on_visit = seen

    def request_state(self, request_id: str, *, owner: str | None = None) -> RequestState | None:
        """The state of the owner's running request; None if it is not running."""
        return tracked.state if (tracked := self._requests.running.get((owner, request_id))) else None

    def _track(self, request_id: str, request: OmniRequest | Any, take: TakeChunk | None) -> TrackedRequest:
        owner = request.metadata.get("owner") if isinstance(request, OmniRequest) else None
        if (owner, request_id) in self._requests.running:
            raise DuplicateRequest(f"request {request_id!r} already exists: use another id, or none")
        if self._lost is not None:
            raise Unavailable(self._lost)
        if not self._running:
            raise RuntimeError("the coordinator is not running: await start() first")
        if self.entry_stage not in self.stages and not self.replicas.is_replicated(self.entry_stage):
            raise ValueError(f"entry stage {self.entry_stage!r} is not registered")
        terminals = terminals_of(request, self.terminal_stages, self.terminal_stages_resolver)
        tracked = self._requests.add(request_id, owner, terminals, take)
        self._counts.track(tracked.wire_id)
        return tracked

    async def _send_in(self, tracked: TrackedRequest, request: Any, more: MoreInput | None) -> None:
        if self.admission.must_wait(tracked.terminals):
            await self.admission.wait_for_room(tracked.terminals, tracked.outcome)
        if self.replicas.down or self.replicas.hung:
            try:
                await self.admission.wait_until_served(self.stage_down_timeout, tracked.outcome)
            except Unavailable as exc:
                self._fail(tracked, exc)
        if tracked.outcome.done():
            return
        if not isinstance(request, OmniRequest):
            request = OmniRequest(inputs=request)
        if tracked.take is None and request.params.get("stream"):
            # The caller waits for the result, which must then be whole.
            request = replace(request, params={**request.params, "stream": False})
        if self._traces_steps:
            request = replace(request, metadata={**request.metadata, TRACED: True})
        payload = StagePayload(tracked.wire_id, request, {"raw_inputs": request.inputs})
        replicas = tracked.replicas = self.replicas.assign()
        entry = self.entry_stage
        if replicas:
            entry = instance_name(entry, replicas.get(entry))
        self._counts.add(tracked.wire_id, entry, 1)
        tracked.state = RequestState.RUNNING
        tracked.trace.sent = time.time()
        try:
            await self.stages.send(entry, SubmitMessage(tracked.wire_id, payload, replicas))
        except (TypeError, ValueError) as exc:
            raise RequestError(f"the request cannot be sent to stages: {exc}", code="invalid_value") from exc
        if more is not None:
            self._inputs.begin(tracked, more)

    def _leave(self, tracked: TrackedRequest) -> None:
        """Aborts the request if its caller goes before it has ended."""
        if not tracked.state.is_final:
            self._end(tracked, RequestState.ABORTED)
        elif tracked.outcome.done() and not tracked.outcome.cancelled():
            tracked.outcome.exception()  # Marks it as retrieved, in case the caller was cancelled meanwhile.

    def _fail(self, tracked: TrackedRequest, error: Exception) -> None:
        self._end(tracked, RequestState.FAILED, error)

    def _end(self, tracked: TrackedRequest, state: RequestState, answer: Any = None) -> None:
        """``answer`` is the result of a completed request, the error of a failed one."""
        if tracked.state.is_final:
            return
        tracked.end(state, answer)  # The caller is answered first, whatever fails below.
        self._requests.remove(tracked)
        if tracked.replicas:
            self.replicas.release(tracked.replicas)
            self.admission.admit_next()
        if state is RequestState.COMPLETED and not self._settling.is_settled(tracked):
            self._settling.add(tracked)
            return
        self._counts.forget(tracked.wire_id)
        if state is not RequestState.COMPLETED:
            self._abort_in_stages(tracked.wire_id)

    def _abort_in_stages(self, wire_id: str) -> None:
        self.control_plane.broadcast_abort(AbortMessage(wire_id))

    def _receive(self, message: Message) -> bool:
        try:
            match message:
                case StreamBatchMessage():
                    for chunk in message.messages():
                        self._on_stream(chunk)
                case StreamMessage():
                    self._on_stream(message)
                case CompleteMessage():
                    self._on_complete(message)
                case ProgressMessage():
                    self._on_progress(message)
                case StatsMessage():
                    # The first may come before its stage is registered.
                    self._stage_stats[message.from_stage] = message.stats
                case _:
                    logger.warning("Ignored a %s message: the coordinator does not take it", message.type)
        except Exception:
            request_id = getattr(message, "request_id", "-")
            logger.exception("Could not handle a %s message of request %s", message.type, request_id)
        return True

    def _lose(self, stage: str, message: Message, reason: str) -> None:
        if not isinstance(message, SubmitMessage | MoreInputMessage):
            return
        if tracked := self._by_wire_id.get(message.request_id):
            self._fail(tracked, Unavailable(f"sending to {stage!r} failed: {reason}"))

    def _on_stream(self, message: StreamMessage) -> None:
        tracked = self._by_wire_id.get(message.request_id)
        if tracked is None or tracked.take is None:
            return
        if message.from_stage not in tracked.terminals:
            tracked.streaming.add(message.from_stage)
        message.request_id = tracked.request_id
        if not tracked.take(message):
            self._fail(tracked, RuntimeError("the reader of the stream is too far behind"))

    def _on_complete(self, message: CompleteMessage) -> None:
        tracked = self._by_wire_id.get(message.request_id)
        if tracked is None:
            return
        if not message.success:
            self._fail(tracked, message.exception())
            return
        stage = stage_of(message.from_stage)
        if tracked.terminals and stage not in tracked.terminals:
            logger.debug("Request %s: no result expected from %s", message.request_id, message.from_stage)
            return
        self._counts.add(tracked.wire_id, message.from_stage, -1)
        tracked.results[stage] = message.result
        self._complete_if_ready(tracked)

    def _complete_if_ready(self, tracked: TrackedRequest) -> None:
        if not tracked.results or not tracked.results.keys() >= tracked.terminals:
            return
        if tracked.take is not None and tracked.streaming:
            asyncio.get_running_loop().call_later(_LATE_CHUNKS_S, self._complete, tracked)
        else:
            self._complete(tracked)

    def _complete(self, tracked: TrackedRequest) -> None:
        *others, last = tracked.results.values()
        self._end(tracked, RequestState.COMPLETED, dict(tracked.results) if others else last)

    def _on_progress(self, message: ProgressMessage) -> None:
        for wire_id, instance, difference in message.changes:
            total = self._counts.add(wire_id, instance, difference, message.from_stage)
            reason = self.replicas.why_lost(instance, message.late_s) if total > 0 else None
            if reason is not None and (tracked := self._by_wire_id.get(wire_id)) is not None:
                self._fail(tracked, Unavailable(reason))
        details = message.details or {}
        for wire_id, work, wait, began in message.spans:
            self._counts.end_visit(wire_id, message.from_stage)
            tracked = self._by_wire_id.get(wire_id) or self._settling.get(wire_id)
            if tracked is None:
                continue
            stage = stage_of(message.from_stage)
            visit = StageVisit(message.from_stage, began, work, wait, details.get(wire_id))
            tracked.trace.add(visit)
            self._on_visit(visit)
            if stage in tracked.streaming:
                tracked.streaming.discard(stage)
                self._complete_if_ready(tracked)
        self._settling.update(message)
