"""The coordinator: takes requests in, follows them through the stages, and answers their callers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sglang_omni.config.instances import instance_name, stage_of
from sglang_omni.pipeline.coordinator.directory import StageDirectory
from sglang_omni.pipeline.coordinator.in_flight import ProgressCounters
from sglang_omni.pipeline.coordinator.replicas import Assignments
from sglang_omni.pipeline.coordinator.terminals import TerminalStagesResolver, terminals_of
from sglang_omni.pipeline.coordinator.tracked_request import OwnedId, TrackedRequest
from sglang_omni.pipeline.coordinator.wire_ids import WireIds
from sglang_omni.pipeline.transport.control_plane import CoordinatorControlPlane
from sglang_omni.pipeline.transport.keys import RunKeys
from sglang_omni.proto import (
    AbortMessage,
    CompleteMessage,
    DuplicateRequest,
    FlushCacheMessage,
    Message,
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
    StreamMessage,
    SubmitMessage,
    Unavailable,
)

logger = logging.getLogger(__name__)

_REMEMBERED_TIMINGS = 1024
# A finished request whose stages have not all let go of it by then is aborted there.
_SETTLE_S = 1.0
_MAX_STREAM_BACKLOG = 10_000


class Coordinator:
    """Submits requests to the entry stage and resolves them from what the terminal stages send.

    All methods belong to the thread of one event loop. ``stages`` knows where each instance
    is reached, ``assignments`` which replica serves a request.

    Args:
        completion_endpoint: Where stages send results; bound by ``start``.
        abort_endpoint: Where aborts are published; bound by ``start``.
        entry_stage: Name of the stage that receives new requests.
        terminal_stages: Names of the stages whose results make up a request's result. Without any, the
            first result completes the request.
        terminal_stages_resolver: Names the terminal stages of one request, a non-empty subset of
            ``terminal_stages``, or None for all of them.
        stage_down_timeout: Seconds a new request waits for a stage that is being restarted, or for one of
            its replicas.
        keys: What ``tcp://`` sockets talk with; needed where there are any.
        host_address: Where stages on other hosts are to reach it as well.
    """

    def __init__(
        self,
        completion_endpoint: str,
        abort_endpoint: str,
        entry_stage: str,
        terminal_stages: Sequence[str] | None = None,
        terminal_stages_resolver: TerminalStagesResolver | None = None,
        *,
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
        self._requests: dict[OwnedId, TrackedRequest] = {}
        self._by_wire_id: dict[str, TrackedRequest] = {}
        self._counters = ProgressCounters()
        # Finished requests whose hand-offs have not all been answered for, oldest first.
        self._settling: OrderedDict[str, tuple[TrackedRequest, float]] = OrderedDict()
        self._reporting: set[str] = set()
        self._stage_stats: dict[str, dict[str, float]] = {}
        self._wire_ids = WireIds()
        self._timings: OrderedDict[OwnedId, dict[str, StageTime]] = OrderedDict()
        self._totals: Counter[str] = Counter()
        self.assignments = Assignments()
        self._lost: str | None = None
        self._running = False

    def register_stage(self, name: str, endpoint: str, *, process: str | None = None) -> None:
        """Makes a stage, or a replica of one, known by the endpoint it receives work on.

        The endpoint is empty where ``stages.move`` is to tell it, once the stage is up.

        Args:
            process: The process, or replica of one, that it runs in. A request is given one replica of a
                process for all of its stages.
        """
        self.stages.add(name, endpoint)
        self.assignments.add(name, process)

    def unregister_stage(self, name: str) -> None:
        """Forgets a replica that has left. Its stage has others."""
        self.stages.remove(name)
        self._stage_stats.pop(name, None)
        self.assignments.remove(name)

    async def start(self) -> None:
        """Binds the endpoints and begins to follow requests."""
        if self._running:
            return
        await self.control_plane.start()
        self._running = True
        self.control_plane.deliver_to(self._receive)
        self.control_plane.on_lost(self._lose)

    async def stop(self) -> None:
        """Fails what is still running and closes the endpoints. Stages are left to their owner."""
        self.fail_all("the pipeline was stopped")
        self._running = False
        self.control_plane.close()

    async def shutdown_stages(self, names: Collection[str] | None = None) -> None:
        """Asks these instances, or all that are registered, to finish and leave."""
        await self.stages.tell(ShutdownMessage(), names)

    async def start_profile(self, run_id: str, trace_path_template: str) -> None:
        """Asks every stage for a torch profile; ``{run_id}`` and ``{stage}`` are filled in its path."""
        await self.stages.tell(ProfilerStartMessage(run_id, trace_path_template))

    async def stop_profile(self, run_id: str | None = None) -> None:
        """Has the stages write the traces of this profile, or of whichever runs."""
        await self.stages.tell(ProfilerStopMessage(run_id))

    async def flush_cache(self) -> None:
        """Has every stage forget what it has cached and no running request uses."""
        await self.stages.tell(FlushCacheMessage())

    async def submit(self, request_id: str, request: OmniRequest | Any) -> Any:
        """Runs a request and returns its result: the one terminal stage's, or ``{stage: result}`` of several.

        Args:
            request_id: Unique among the running requests of its owner, ``request.metadata["owner"]``.
            request: An OmniRequest, or bare inputs for one.

        Raises:
            DuplicateRequest: The id is in use.
            ValueError: The entry stage is unknown.
            RequestError: A stage found the request itself at fault.
            RuntimeError: A stage failed; the text names it and says how. ``Unavailable`` where that is no
                matter of this request.
            asyncio.CancelledError: The request was aborted.
        """
        tracked = self._admit(request_id, request, chunks=None)
        try:
            await self._send_in(tracked, request)
            return await tracked.outcome
        finally:
            self._leave(tracked)

    async def stream(
        self, request_id: str, request: OmniRequest | Any
    ) -> AsyncIterator[StreamMessage | CompleteMessage]:
        """Runs a request and yields its chunks as they come, last a CompleteMessage with the whole result.

        Raises what ``submit`` raises. Closing the iterator early aborts the request.
        """
        chunks: asyncio.Queue[StreamMessage | None] = asyncio.Queue()
        tracked = self._admit(request_id, request, chunks)
        try:
            await self._send_in(tracked, request)
            while (chunk := await chunks.get()) is not None:
                yield chunk
            result = await tracked.outcome
            source = next(iter(tracked.results)) if len(tracked.results) == 1 else "coordinator"
            yield CompleteMessage(request_id=request_id, from_stage=source, success=True, result=result)
        finally:
            self._leave(tracked)

    async def abort(self, request_id: str, *, owner: str | None = None) -> bool:
        """Stops the owner's request in every stage. False if it is not running, or not any more."""
        tracked = self._requests.get((owner, request_id))
        if tracked is None:
            return False
        self._end(tracked, RequestState.ABORTED)
        return True

    def stage_down(self, stage_names: Iterable[str], reason: str) -> None:
        """Fails the requests these instances hold, and those handed to them until ``stage_up``.

        Requests elsewhere go on. New ones go to other replicas, or wait until every stage is up again.
        """
        names = list(stage_names)
        self.assignments.mark_down(names, reason)
        for name in names:
            self._stage_stats.pop(name, None)
        for wire_id in self._counters.held_by(names):
            if (tracked := self._by_wire_id.get(wire_id)) is not None:
                self._end(tracked, RequestState.FAILED, error=Unavailable(reason))

    def stage_up(self, stage_names: Iterable[str]) -> None:
        """These instances take work again."""
        self.assignments.mark_up(stage_names)

    async def drain(self, reason: str) -> None:
        """Refuses every later request with this reason, and returns when those that run have ended."""
        self._lost = self._lost or reason
        if running := [tracked.outcome for tracked in self._requests.values()]:
            await asyncio.wait(running)

    def fail_all(self, reason: str) -> None:
        """The pipeline is lost: fails every request, and every later one at once, with this reason."""
        self._lost = reason
        for tracked in list(self._requests.values()):
            self._end(tracked, RequestState.FAILED, error=Unavailable(reason))

    def health(self) -> dict[str, Any]:
        """Whether requests can be served, and what is running."""
        return {
            "running": self._running and self._lost is None,
            "error": self._lost,
            "stages": list(self.stages),
            **self.assignments.health(),
            "entry_stage": self.entry_stage,
            "total_requests": len(self._requests),
            "pending_completions": len(self._requests),
            "request_states": dict(Counter(t.state.value for t in self._requests.values())),
        }

    def get_load(self) -> dict[str, int]:
        """Requests per state: now for pending and running, since the start for the final states."""
        states = Counter(t.state.value for t in self._requests.values())
        return {state.value: states[state.value] or self._totals[state.value] for state in RequestState}

    def stage_load(self) -> dict[str, int]:
        """How many requests each stage, or replica of one, answers for now."""
        load = dict.fromkeys(self.stages, 0)
        for wire_id in self._by_wire_id:
            for stage in self._counters.holders(wire_id):
                load[stage] = load.get(stage, 0) + 1
        return load

    def ongoing_requests(self, instances: Iterable[str]) -> int:
        """How many requests at least one of these instances holds, running or waiting."""
        return len(self._counters.held_by(instances))

    def is_drained(self, instances: Iterable[str]) -> bool:
        """Whether no request needs these replicas any more."""
        names = list(instances)
        return not self.assignments.have_requests(names) and not self._counters.held_by(names)

    def stage_stats(self) -> dict[str, dict[str, float]]:
        """By stage, or replica of one, the numbers of its scheduler and relay; absent where there are none.

        They are behind by at most a twentieth of a second while a stage works.
        """
        # Others may be the last word of a replica that has left.
        return {stage: dict(stats) for stage, stats in self._stage_stats.items() if stage in self.stages}

    def timings(self, request_id: str, *, owner: str | None = None) -> dict[str, StageTime]:
        """Seconds in each stage that the owner's request has left, in their order; empty if not known."""
        timings = self._timings.get((owner, request_id), {})
        stages = dict.fromkeys(stage_of(instance) for instance in self.stages) | timings
        return {stage: timings[stage].copy() for stage in stages if stage in timings}

    def request_state(self, request_id: str, *, owner: str | None = None) -> RequestState | None:
        """The state of the owner's running request; None if it is not running."""
        return tracked.state if (tracked := self._requests.get((owner, request_id))) else None

    # --- requests ---------------------------------------------------------------------------------

    def _admit(
        self,
        request_id: str,
        request: OmniRequest | Any,
        chunks: asyncio.Queue[StreamMessage | None] | None,
    ) -> TrackedRequest:
        owner = request.metadata.get("owner") if isinstance(request, OmniRequest) else None
        if (owner, request_id) in self._requests:
            raise DuplicateRequest(f"request {request_id!r} already exists: use another id, or none")
        if self._lost is not None:
            raise Unavailable(self._lost)
        if not self._running:
            raise RuntimeError("the coordinator is not running: await start() first")
        if self.entry_stage not in self.stages and not self.assignments.is_replicated(self.entry_stage):
            raise ValueError(f"entry stage {self.entry_stage!r} is not registered")
        terminals = terminals_of(request, self.terminal_stages, self.terminal_stages_resolver)
        tracked = TrackedRequest(
            request_id=request_id,
            wire_id=self._wire_ids.new(request_id),
            terminals=terminals,
            outcome=asyncio.get_running_loop().create_future(),
            chunks=chunks,
            owner=owner,
        )
        self._requests[tracked.name] = tracked
        self._by_wire_id[tracked.wire_id] = tracked
        self._counters.track(tracked.wire_id)
        self._timings[tracked.name] = tracked.timings
        if len(self._timings) > _REMEMBERED_TIMINGS:
            self._timings.popitem(last=False)
        return tracked

    async def _send_in(self, tracked: TrackedRequest, request: OmniRequest | Any) -> None:
        if self.assignments.must_wait(tracked.terminals):
            await self.assignments.wait_for_room(tracked.terminals, tracked.outcome)
        if self.assignments.down or self.assignments.hung:
            try:
                await self.assignments.wait_until_served(self.stage_down_timeout, tracked.outcome)
            except Unavailable as exc:
                self._end(tracked, RequestState.FAILED, error=exc)
        if tracked.outcome.done():
            return
        if not isinstance(request, OmniRequest):
            request = OmniRequest(inputs=request)
        payload = StagePayload(tracked.wire_id, request, {"raw_inputs": request.inputs})
        replicas = tracked.replicas = self.assignments.assign()
        entry = self.entry_stage
        if replicas:
            entry = instance_name(entry, replicas.get(entry))
        self._counters.add(tracked.wire_id, entry, 1)
        tracked.state = RequestState.RUNNING
        try:
            await self.stages.send(entry, SubmitMessage(tracked.wire_id, payload, replicas))
        except (TypeError, ValueError) as exc:
            raise RequestError(f"the request cannot be sent to stages: {exc}", code="invalid_value") from exc

    def _leave(self, tracked: TrackedRequest) -> None:
        """The caller is gone; what it left unfinished is aborted."""
        if not tracked.state.is_final:
            self._end(tracked, RequestState.ABORTED)
        elif tracked.outcome.done() and not tracked.outcome.cancelled():
            tracked.outcome.exception()  # Marks it as seen where the caller was cancelled meanwhile.

    def _end(
        self,
        tracked: TrackedRequest,
        state: RequestState,
        *,
        result: Any = None,
        error: Exception | None = None,
    ) -> None:
        if tracked.state.is_final:
            return
        tracked.state = state  # The answer comes first: whatever fails below, its caller does not wait.
        if not tracked.outcome.done():
            if error is not None:
                tracked.outcome.set_exception(error)
            elif state is RequestState.ABORTED:
                tracked.outcome.cancel(f"request {tracked.request_id!r} was aborted")
            else:
                tracked.outcome.set_result(result)
        if tracked.chunks is not None:
            tracked.chunks.put_nowait(None)
        self._totals[state.value] += 1
        del self._requests[tracked.name]
        del self._by_wire_id[tracked.wire_id]
        if tracked.replicas:
            self.assignments.release(tracked.replicas)
        if state is RequestState.COMPLETED:
            if self._counters.is_settled(tracked.wire_id):
                self._counters.forget(tracked.wire_id)
            else:
                self._settle_later(tracked)
        else:
            self._counters.forget(tracked.wire_id)
            self.control_plane.broadcast_abort(AbortMessage(tracked.wire_id))

    # --- after the end: hand-offs still to be answered for ---------------------------------------

    def _settle_later(self, tracked: TrackedRequest) -> None:
        loop = asyncio.get_running_loop()
        if not self._settling:
            loop.call_later(_SETTLE_S, self._sweep)
        self._settling[tracked.wire_id] = (tracked, loop.time() + _SETTLE_S)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._settling:
            wire_id, (_, deadline) = next(iter(self._settling.items()))
            if deadline > loop.time():
                loop.call_at(deadline, self._sweep)
                return
            del self._settling[wire_id]
            holders = self._counters.holders(wire_id)
            self._counters.forget(wire_id)
            # A stage that never reports is not one that forgot this request.
            if any(stage in self._reporting for stage in holders):
                logger.debug("Request %s is finished, but %s still hold it", wire_id, holders)
                self.control_plane.broadcast_abort(AbortMessage(wire_id))

    def _lose(self, stage: str, message: Message, reason: str) -> None:
        if isinstance(message, SubmitMessage) and (tracked := self._by_wire_id.get(message.request_id)):
            error = Unavailable(f"sending to {stage!r} failed: {reason}")
            self._end(tracked, RequestState.FAILED, error=error)

    # --- messages of stages -----------------------------------------------------------------------

    def _receive(self, message: Message) -> bool:
        try:
            self._handle(message)
        except Exception:
            request_id = getattr(message, "request_id", "-")
            logger.exception("Could not handle a %s message of request %s", message.type, request_id)
        return True

    def _handle(self, message: Message) -> None:
        match message:
            case StreamMessage():
                self._on_stream(message)
            case CompleteMessage():
                self._on_complete(message)
            case ProgressMessage():
                self._on_progress(message)
            case StatsMessage():
                # A stage's first word comes before all are up and known here.
                self._stage_stats[message.from_stage] = message.stats
            case _:
                logger.warning("Ignored a %s message: the coordinator does not take it", message.type)

    def _on_stream(self, message: StreamMessage) -> None:
        tracked = self._by_wire_id.get(message.request_id)
        if tracked is None or tracked.chunks is None:
            return
        if tracked.chunks.qsize() >= _MAX_STREAM_BACKLOG:
            error = RuntimeError(f"the reader of the stream fell {_MAX_STREAM_BACKLOG} chunks behind")
            self._end(tracked, RequestState.FAILED, error=error)
            return
        if message.from_stage not in tracked.terminals:
            tracked.streaming.add(message.from_stage)
        if message.request_id != tracked.request_id:
            message = replace(message, request_id=tracked.request_id)
        tracked.chunks.put_nowait(message)

    def _on_complete(self, message: CompleteMessage) -> None:
        tracked = self._by_wire_id.get(message.request_id)
        if tracked is None:
            return
        if not message.success:
            self._end(tracked, RequestState.FAILED, error=message.exception())
            return
        stage = stage_of(message.from_stage)
        if tracked.terminals and stage not in tracked.terminals:
            logger.debug("Request %s: no result expected from %s", message.request_id, message.from_stage)
            return
        self._counters.add(tracked.wire_id, message.from_stage, -1)
        tracked.results[stage] = message.result
        self._complete_if_ready(tracked)

    def _complete_if_ready(self, tracked: TrackedRequest) -> None:
        if not tracked.results or not tracked.results.keys() >= tracked.terminals:
            return
        if tracked.chunks is not None and tracked.streaming:
            # Their chunks come on connections of their own and may be behind the last result.
            asyncio.get_running_loop().call_later(_SETTLE_S, self._complete, tracked)
            return
        self._complete(tracked)

    def _complete(self, tracked: TrackedRequest) -> None:
        results = tracked.results
        result = next(iter(results.values())) if len(results) == 1 else dict(results)
        self._end(tracked, RequestState.COMPLETED, result=result)

    def _on_progress(self, message: ProgressMessage) -> None:
        self._reporting.add(message.from_stage)
        down = self.assignments.down
        for wire_id, stage, difference in message.changes:
            total = self._counters.add(wire_id, stage, difference)
            if total > 0 and stage in down and (tracked := self._by_wire_id.get(wire_id)) is not None:
                self._end(tracked, RequestState.FAILED, error=Unavailable(down[stage]))
        for wire_id, work, wait in message.spans:
            tracked = self._by_wire_id.get(wire_id)
            if tracked is None:
                if wire_id not in self._settling:
                    continue
                tracked = self._settling[wire_id][0]
            stage = stage_of(message.from_stage)
            tracked.add_time(stage, work, wait)
            if stage in tracked.streaming:
                tracked.streaming.discard(stage)
                self._complete_if_ready(tracked)
        if self._settling:
            for wire_id, _, _ in message.changes:
                if wire_id in self._settling and self._counters.is_settled(wire_id):
                    del self._settling[wire_id]
                    self._counters.forget(wire_id)
