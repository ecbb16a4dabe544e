"""The sending side of a stage: from the scheduler's outbox to the edges, each behind a queue of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sglang_omni.compat.control_plane import StageLink
from sglang_omni.pipeline.stage.edges.coordinator import COORDINATOR, CoordinatorEdge
from sglang_omni.pipeline.stage.edges.cuda import CudaIpcEdge
from sglang_omni.pipeline.stage.edges.edge import End, Item, OutgoingEdge, StreamChunk
from sglang_omni.pipeline.stage.edges.local import LocalEdge
from sglang_omni.pipeline.stage.edges.queue import EdgeQueue, JointJob
from sglang_omni.pipeline.stage.edges.relayed import RelayedEdge, TargetEndpoints
from sglang_omni.pipeline.stage.edges.relays import EdgeRelays
from sglang_omni.pipeline.stage.failures import transfer_failure
from sglang_omni.pipeline.stage.requests import RequestRecord, RequestTable
from sglang_omni.pipeline.stage.routing import Routing
from sglang_omni.pipeline.stage.wiring import Wiring
from sglang_omni.relay.base import Relay, RelayOperation
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.playback import num_samples
from sglang_omni.scheduling.queues import Outbox

# Messages routed in a row before the loop's other work gets its turn.
_OUTBOX_BATCH = 64
# Items routed but not sent, at which the outbox is left to fill up, and at which draining goes on.
_BACKLOG_HIGH = 4096
_BACKLOG_LOW = 1024


class _Target(NamedTuple):
    edge: OutgoingEdge
    queue: EdgeQueue
    send_chunks: JointJob


class ItemSender:
    """Sends what the scheduler emits, in order on each edge.

    Args:
        link: The stage's control plane.
        relays: The relays that items go over to other processes.
        requests: The stage's requests; a dropped one sends nothing any more.
        coordinator: The edge to the coordinator.
        outbox: The scheduler's messages.
        fail: ``fail(request_id, error)`` ends a request; the error as it was raised, or its text.
    """

    def __init__(
        self,
        wiring: Wiring,
        link: StageLink,
        relays: EdgeRelays,
        requests: RequestTable,
        coordinator: CoordinatorEdge,
        outbox: Outbox[OutgoingMessage],
        *,
        fail: Callable[[str, object], None],
    ) -> None:
        self._wiring = wiring
        self._routing = Routing(wiring, relays.to)
        self._link = link
        self._relays = relays
        self._requests = requests
        self._outbox = outbox
        self._endpoints = TargetEndpoints(wiring.endpoints)
        self._fail = fail
        coordinator.queue.on_done = self._on_sent
        self._targets = {COORDINATOR: self._target(COORDINATOR, coordinator, coordinator.queue)}
        # By target, chunks that are routed and not queued yet: those of one batch leave together.
        self._chunks: dict[str, list[StreamChunk]] = {}
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

    def _on_sent(self) -> None:
        if self._outbox_waits and self.backlog <= _BACKLOG_LOW:
            self.take_outbox()

    def route(self, batch: list[OutgoingMessage]) -> None:
        """Puts the scheduler's messages into the queues of their edges."""
        for out in batch:
            if out.type != "stream":
                self._put_chunks()
            record = self._requests.active.get(out.request_id)
            if record is None:
                continue  # Aborted, failed or finished meanwhile.
            try:
                if out.type == "result":
                    self._send_result(out.request_id, record, out.data)
                elif out.type == "stream":
                    self._send_chunk(out, record)
                else:
                    self._fail(out.request_id, out.data)
            except Exception as exc:  # noqa: BLE001  hooks and routes are the request's own failure
                self._fail(out.request_id, exc)
        self._put_chunks()

    def fail(self, failure: End) -> None:
        """Reports a request's failure to the coordinator."""
        self._put_chunks()
        self._put(COORDINATOR, failure)

    def move(self, endpoints: Mapping[str, str]) -> None:
        """Takes the new endpoints of instances on other hosts."""
        for target, endpoint in self._endpoints.update(endpoints).items():
            self._link.move(target, endpoint)

    async def drain(self) -> None:
        """Returns once all that was routed is sent. Nothing more is taken from the outbox."""
        self._stopped = True
        self._requests.flush_progress()
        for target in list(self._targets.values()):
            await target.queue.drain()

    async def close(self) -> None:
        """Drops what is not sent."""
        for target in self._targets.values():
            await target.queue.close()
        for task in self._puts:
            task.cancel()

    def _send_result(self, request_id: str, record: RequestRecord, output: Any) -> None:
        routed = self._routing.result(request_id, output, record.replicas, record.samples_sent)
        for target, end in routed.ends:
            self._open_stream(request_id, record, target)
            self._put(target, end)
        for target, payload in routed.payloads:
            self._requests.hand_on(request_id, target)
            self._put(target, payload)
        # A send that ran inside its queue's `put` may have failed, which has ended the request.
        if self._requests.active.get(request_id) is not record:
            return
        if routed.answer is not None:
            self._requests.hand_on(request_id, None)
        record.running -= 1
        if record.running <= 0:
            self._requests.finish(request_id)
        if routed.answer is not None:
            self._put(COORDINATOR, routed.answer)

    def _send_chunk(self, out: OutgoingMessage, record: RequestRecord) -> None:
        for target, chunk in self._routing.chunk(out, record.replicas, record.chunks_sent):
            if target == COORDINATOR:
                record.samples_sent += num_samples(out.data)
            else:
                self._open_stream(out.request_id, record, target)
            self._chunks.setdefault(target, []).append(chunk)
            record.chunks_sent[target] = chunk.chunk_id + 1

    def _open_stream(self, request_id: str, record: RequestRecord, target: str) -> None:
        if target not in record.chunks_sent:
            record.chunks_sent[target] = 0
            self._requests.hand_on(request_id, target, stream=True)

    # --- sending ----------------------------------------------------------------------------------

    def _put(self, target: str, item: Item) -> None:
        """Queues an item. Its sending may run, and fail, inside this call; see ``EdgeQueue``."""
        to = self._targets.get(target) or self._open(target)
        to.queue.put(item.request_id, self._send, target, to.edge, item)

    def _put_chunks(self) -> None:
        if self._chunks:
            routed, self._chunks = self._chunks, {}
            for target, chunks in routed.items():
                to = self._targets.get(target) or self._open(target)
                to.queue.put_together(to.send_chunks, chunks)

    async def _send_chunks(self, target: str, edge: OutgoingEdge, chunks: Sequence[StreamChunk]) -> None:
        """Sends chunks of several requests, in their turn."""
        is_dropped = self._requests.is_dropped

        def fail(chunk: StreamChunk, exc: Exception) -> None:
            self._fail_sending(chunk.request_id, target, exc)

        await edge.send_chunks((chunk for chunk in chunks if not is_dropped(chunk.request_id)), fail)
        for chunk in chunks:
            if is_dropped(chunk.request_id):
                # The request ended during the write, and its reader may be gone.
                self._relays.cleanup(chunk.request_id)

    def _target(self, target: str, edge: OutgoingEdge, queue: EdgeQueue) -> _Target:
        return _Target(edge, queue, partial(self._send_chunks, target, edge))

    def _open(self, target: str) -> _Target:
        wiring, relay_to = self._wiring, self._relays.to
        queue = EdgeQueue(f"{wiring.instance}->{target}", self._on_sent)
        edge: OutgoingEdge = RelayedEdge(
            wiring.instance, target, relay_to, self._link, self._endpoints.of, self._watch_put(target)
        )
        if target in wiring.same_process_targets:
            edge = LocalEdge(wiring.instance, target, wiring.dispatcher, edge)
        elif target in wiring.same_gpu_targets:
            edge = CudaIpcEdge(target, relay_to, edge)
        opened = self._targets[target] = self._target(target, edge, queue)
        return opened

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
