"""The sending side of a stage: from the scheduler's outbox to the edges, each behind a queue of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_omni.compat.control_plane import StageLink
from sglang_omni.config.instances import instance_name, stage_of
from sglang_omni.pipeline.stage.edges.coordinator import COORDINATOR, CoordinatorEdge
from sglang_omni.pipeline.stage.edges.cuda import CudaIpcEdge
from sglang_omni.pipeline.stage.edges.edge import End, Item, OutgoingEdge, Payload, StreamChunk
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.pipeline.stage.edges.isolation import isolated_targets
from sglang_omni.pipeline.stage.edges.local import LocalEdge, LocalStageDispatcher
from sglang_omni.pipeline.stage.edges.queue import EdgeQueue
from sglang_omni.pipeline.stage.edges.relayed import RelayedEdge, TargetEndpoints
from sglang_omni.pipeline.stage.edges.relays import EdgeRelays
from sglang_omni.pipeline.stage.failures import transfer_failure
from sglang_omni.pipeline.stage.requests import ProgressReporter, RequestRecord, RequestTable
from sglang_omni.proto import Replicas, StagePayload
from sglang_omni.relay.base import Relay, RelayOperation
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.queues import Outbox

GetNextFn = Callable[[str, Any], str | list[str] | None]
GetStreamDoneTargetsFn = Callable[[str, Any], str | list[str] | None]
ProjectFn = Callable[[StagePayload], StagePayload]

# Messages routed in a row before the loop's other work gets its turn.
_OUTBOX_BATCH = 64
# Items routed but not sent, at which the outbox is left to fill up, and at which draining goes on.
_BACKLOG_HIGH = 4096
_BACKLOG_LOW = 1024


class _Target(NamedTuple):
    edge: OutgoingEdge
    queue: EdgeQueue


class Outgoing:
    """Routes what the scheduler emits and sends it, in order on each edge.

    Hooks of the configuration name stages. Each is turned at once into the instance that serves the request;
    edges lead to instances.

    Args:
        instance: The sending instance.
        link: The stage's control plane.
        relays: The relays that items go over to other processes.
        requests: The stage's requests; a dropped one sends nothing any more.
        progress: Notified of every payload and stream that is handed on.
        coordinator: The edge to the coordinator.
        outbox: The scheduler's messages.
        get_next: ``get_next(request_id, output)`` names the next stage or stages; None completes the request.
        endpoints: ``{instance: endpoint}`` of the targets; an empty endpoint becomes known by ``move``.
        project_payload: ``{target: function}`` that reduces a payload to what the target needs.
        stream_targets: Where untargeted chunks go; to the caller if there are none.
        get_stream_done_targets: ``f(request_id, output)`` names the stream targets whose stream ends with the
            result; without it, all of them.
        same_gpu_targets: Targets on the same GPU, in other processes.
        same_process_targets: Targets in this process, reached through ``dispatcher``.
        dispatcher: The stages of this process.
        fail: ``fail(request_id, error)`` ends a request; the error as it was raised, or its text.
        touch: Called when something was routed.
    """

    def __init__(
        self,
        instance: str,
        *,
        link: StageLink,
        relays: EdgeRelays,
        requests: RequestTable,
        progress: ProgressReporter,
        coordinator: CoordinatorEdge,
        outbox: Outbox[OutgoingMessage],
        get_next: GetNextFn,
        endpoints: Mapping[str, str],
        project_payload: Mapping[str, ProjectFn],
        stream_targets: Collection[str],
        get_stream_done_targets: GetStreamDoneTargetsFn | None,
        same_gpu_targets: Collection[str],
        same_process_targets: Collection[str],
        dispatcher: LocalStageDispatcher | None,
        fail: Callable[[str, object], None],
        touch: Callable[[], None],
    ) -> None:
        self._instance = instance
        self._stage_name = stage_of(instance)
        self._link = link
        self._relays = relays
        self._requests = requests
        self._progress = progress
        self._outbox = outbox
        self._get_next = get_next
        self._endpoints = TargetEndpoints(endpoints)
        self._project_payload = project_payload
        self._stream_targets = list(stream_targets)
        self._get_stream_done_targets = get_stream_done_targets
        self._same_gpu_targets = set(same_gpu_targets)
        self._same_process_targets = set(same_process_targets) if dispatcher is not None else set()
        self._dispatcher = dispatcher
        self._fail = fail
        self._touch = touch
        self._topology = {stage_of(target) for target in (*endpoints, *same_process_targets)}
        self._targets = {COORDINATOR: _Target(coordinator, coordinator.queue)}
        self._puts: set[asyncio.Task[None]] = set()
        self._outbox_waits = False
        self._stopped = False

    @property
    def backlog(self) -> int:
        """Items routed and not yet sent."""
        return sum(len(target.queue) for target in self._targets.values())

    # --- the outbox -------------------------------------------------------------------------------

    def listen(self) -> None:
        """Begins to take what the scheduler emits, in the running loop."""
        loop = asyncio.get_running_loop()

        def notify() -> None:  # In the thread that emits.
            if not self._stopped:
                loop.call_soon_threadsafe(self.take_outbox)

        self._outbox.listen(notify)

    def take_outbox(self) -> None:
        """Routes what the scheduler has emitted, unless too much is routed and not sent yet."""
        if self._stopped:
            return
        self._outbox_waits = self.backlog >= _BACKLOG_HIGH
        if self._outbox_waits:
            return
        batch = self._outbox.take(_OUTBOX_BATCH)
        self.route(batch)
        if len(batch) == _OUTBOX_BATCH:
            asyncio.get_running_loop().call_soon(self.take_outbox)

    def on_sent(self) -> None:
        """To be called when something has left that had to wait."""
        if self._outbox_waits and self.backlog <= _BACKLOG_LOW:
            self.take_outbox()

    def route(self, batch: list[OutgoingMessage]) -> None:
        """Puts the scheduler's messages into the queues of their edges."""
        self._touch()
        for out in batch:
            record = self._requests.active.get(out.request_id)
            if record is None:
                continue  # Aborted, failed or finished meanwhile.
            try:
                if out.type == "result":
                    self._route_result(out.request_id, record, out.data)
                elif out.type == "stream":
                    self._route_chunk(out, record)
                else:
                    self._fail(out.request_id, out.data)
            except Exception as exc:  # noqa: BLE001  hooks and routes are the request's own failure
                self._fail(out.request_id, exc)

    def fail(self, failure: End) -> None:
        """Reports a request's failure to the coordinator."""
        self._put(COORDINATOR, failure)

    def move(self, endpoints: Mapping[str, str]) -> None:
        """Takes the new endpoints of instances on other hosts."""
        for target, endpoint in self._endpoints.update(endpoints).items():
            self._link.move(target, endpoint)

    async def drain(self) -> None:
        """Returns once all that was routed is sent. Nothing more is taken from the outbox."""
        self._stopped = True
        self._progress.flush()
        for target in list(self._targets.values()):
            await target.queue.drain()

    async def close(self) -> None:
        """Drops what is not sent."""
        for target in self._targets.values():
            await target.queue.close()
        for task in self._puts:
            task.cancel()

    # --- routing ----------------------------------------------------------------------------------

    def _route_result(self, request_id: str, record: RequestRecord, output: Any) -> None:
        """Sends a result to the next stages, or to the coordinator, and the end of its streams.

        Raises:
            ValueError: The route leaves the static topology.
            TypeError: The output cannot go to another stage.
            Exception: What a hook of the stage's configuration raised.
        """
        replicas = record.replicas
        returned = self._get_next(request_id, output)
        ended = _instances(self._ended_streams(request_id, output), replicas)
        payloads: list[tuple[str, StagePayload]] = []
        if returned is not None:
            targets = checked_targets(returned, self._topology, stage=self._stage_name, hook="get_next")
            payloads = self._projected(output, targets, replicas)
        local = isolated_targets(payloads, output, self._same_process_targets)
        shared = self._shared([sent for sent in payloads if sent[0] not in local])
        for target in ended:
            self._open_stream(request_id, record, target)
            self._put(target, End(request_id, self._instance, None, replicas))
        trace = self._requests.traces.get(request_id)
        for target, payload in payloads:
            self._progress.handed_on(request_id, target)
            if trace is not None:
                trace.hop("to", target)
            if (fan_out := shared.get(target)) is None:
                item = Payload(request_id, self._instance, payload, replicas, is_own=target in local)
            else:
                item = Payload(request_id, self._instance, None, replicas, fan_out)
            self._put(target, item)
        # A send that ran inside its queue's `put` may have failed, which has ended the request.
        if self._requests.active.get(request_id) is not record:
            return
        if returned is None:
            self._progress.handed_on(request_id, None)
            if trace is not None:
                trace.hop("to", COORDINATOR)
        record.running -= 1
        if record.running <= 0:
            self._requests.finish(request_id)
        if returned is None:
            result = output.data if isinstance(output, StagePayload) else output
            self._put(COORDINATOR, Payload(request_id, self._instance, result))

    def _route_chunk(self, out: OutgoingMessage, record: RequestRecord) -> None:
        """Sends a chunk to its target, to all stream targets, or to the caller.

        Raises:
            ValueError: The target is not one of the stage's stream targets.
        """
        if out.target is None:
            targets = self._stream_targets or [COORDINATOR]
        elif out.target == COORDINATOR or out.target in self._stream_targets:
            targets = [out.target]
        else:
            raise ValueError(
                f"stream target {out.target!r} is outside the static topology: stream_to is "
                f"{self._stream_targets}"
            )
        request_id, replicas, sent = out.request_id, record.replicas, record.chunks_sent
        targets = _instances(targets, replicas)
        remote = [t for t in targets if t != COORDINATOR and t not in self._same_process_targets]
        shared = self._shared([(target, out.data) for target in remote])
        for target in targets:
            if target == COORDINATOR:
                sent.setdefault(target, 0)
            else:
                self._open_stream(request_id, record, target)
            chunk_id = sent[target]
            sent[target] = chunk_id + 1
            fan_out = shared.get(target)
            item = StreamChunk(
                request_id, self._instance, chunk_id, out.data, out.metadata, replicas, fan_out
            )
            self._put(target, item)

    def _ended_streams(self, request_id: str, output: Any) -> list[str]:
        if self._get_stream_done_targets is None:
            return self._stream_targets
        returned = self._get_stream_done_targets(request_id, output)
        if returned is None:
            return []
        return checked_targets(
            returned, self._stream_targets, stage=self._stage_name, hook="stream_done_to_fn", empty_ok=True
        )

    def _projected(
        self, output: Any, targets: list[str], replicas: Replicas
    ) -> list[tuple[str, StagePayload]]:
        """Each target's instance and payload."""
        projected = []
        for target in targets:
            project = self._project_payload.get(target)
            payload = project(output) if project is not None else output
            if not isinstance(payload, StagePayload):
                source = "its scheduler" if project is None else "project_payload"
                raise TypeError(
                    f"stage {self._stage_name!r} cannot send to {target!r}: {source} returned a "
                    f"{type(payload).__name__}, expected a StagePayload"
                )
            projected.append(payload)
        return list(zip(_instances(targets, replicas), projected, strict=True))

    def _shared(self, sent: Sequence[tuple[str, Any]]) -> dict[str, FanOut]:
        """By target, what writes an object that others get through the same relay."""
        if len(sent) < 2:
            return {}
        ways = [(id(obj), id(self._relays.to(target))) for target, obj in sent]
        uses = Counter(ways)
        fan_outs = {
            way: FanOut(self._relays.to(target), obj)
            for way, (target, obj) in zip(ways, sent, strict=True)
            if uses[way] > 1
        }
        return {target: fan_outs[way] for way, (target, _) in zip(ways, sent, strict=True) if way in fan_outs}

    def _open_stream(self, request_id: str, record: RequestRecord, target: str) -> None:
        if target not in record.chunks_sent:
            record.chunks_sent[target] = 0
            self._progress.handed_on(request_id, target)
            if (trace := self._requests.traces.get(request_id)) is not None:
                trace.hop("to", target, stream=True)

    # --- sending ----------------------------------------------------------------------------------

    def _put(self, target: str, item: Item) -> None:
        """Queues an item. Its sending may run, and fail, inside this call; see ``EdgeQueue``."""
        to = self._targets.get(target)
        if to is None:
            to = self._targets[target] = self._open(target)
        to.queue.put(item.request_id, self._send, target, to.edge, item)

    def _open(self, target: str) -> _Target:
        queue = EdgeQueue(f"{self._instance}->{target}", self.on_sent)
        edge: OutgoingEdge = RelayedEdge(
            self._instance, target, self._relays.to, self._link, self._endpoints.of, self._watch_put(target)
        )
        if target in self._same_process_targets:
            assert self._dispatcher is not None
            edge = LocalEdge(self._instance, target, self._dispatcher, edge)
        elif target in self._same_gpu_targets:
            edge = CudaIpcEdge(target, self._relays.to, edge)
        return _Target(edge, queue)

    async def _send(self, target: str, edge: OutgoingEdge, item: Item) -> None:
        """Sends an item, in its turn."""
        is_outcome = target == COORDINATOR and type(item) is not StreamChunk
        if self._requests.is_dropped(item.request_id) and not is_outcome:
            return
        try:
            await edge.send(item)
        except Exception as exc:
            if is_outcome and type(item) is End:
                raise  # There is no other way to report it.
            self._fail_sending(item.request_id, target, exc)
        else:
            if self._requests.is_dropped(item.request_id) and not is_outcome:
                # The request ended during the write, and its reader may be gone.
                self._relays.cleanup(item.request_id)

    def _fail_sending(self, request_id: str, target: str, exc: Exception) -> None:
        self._fail(request_id, transfer_failure(f"sending to {target!r}", exc))

    def _watch_put(self, target: str) -> Callable[[str, str, RelayOperation, Relay], None]:
        """Waits for the puts of an edge beside its queue, so that an unread one does not hold up the next."""

        async def wait(request_id: str, key: str, put: RelayOperation, relay: Relay) -> None:
            try:
                await put.wait_for_completion()
            except Exception as exc:  # noqa: BLE001  reported as the request's failure
                if not self._requests.is_dropped(request_id):
                    self._fail_sending(request_id, target, exc)
                # Ending the request has freed what is under its id, which a plain relay's chunks are not.
                if key != request_id:
                    relay.cleanup(key)

        def watch(request_id: str, key: str, put: RelayOperation, relay: Relay) -> None:
            task = asyncio.get_running_loop().create_task(wait(request_id, key, put, relay))
            self._puts.add(task)
            task.add_done_callback(self._puts.discard)

        return watch


def checked_targets(
    returned: Any, allowed: Collection[str], *, stage: str, hook: str, empty_ok: bool = False
) -> list[str]:
    """The stage names a routing hook returned, in order and each once.

    Args:
        returned: A name, names, or None for no name.
        allowed: The names that the pipeline's configuration allows.
        stage: The stage the hook belongs to.
        hook: The hook's name, for the error.
        empty_ok: True if the hook may return no name at all.

    Raises:
        ValueError: ``returned`` is not a name or names, or not among ``allowed``.
    """
    names = [returned] if isinstance(returned, str) else () if returned is None else returned
    if not isinstance(names, Iterable) or isinstance(names, (bytes, dict)):
        raise ValueError(f"stage {stage!r}: {hook} must return a stage name or names, got {returned!r}")
    targets = list(dict.fromkeys(names))
    if not targets and not empty_ok:
        raise ValueError(
            f"stage {stage!r}: {hook} returned no targets; it must choose from {sorted(allowed)}, "
            "and a stage that ends requests is terminal"
        )
    unknown = [name for name in targets if name not in allowed]
    if unknown:
        raise ValueError(
            f"stage {stage!r}: {hook} returned targets outside the static topology: {unknown}; "
            f"allowed: {sorted(allowed)}"
        )
    return targets


def _instances(targets: list[str], replicas: Replicas) -> list[str]:
    """The instance of each target that serves a request with these replicas."""
    if not replicas:
        return targets
    return [instance_name(target, replicas.get(target)) for target in targets]
