"""OmniScheduler: a stage that runs an engine, autoregressive or of encoders."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from queue import Queue
from typing import Any, Generic

from sglang_omni.engines.base import Engine, RequestT
from sglang_omni.engines.request import EngineRequest, FinishReason
from sglang_omni.engines.warm_up import warm_up
from sglang_omni.gpu_faults import after_failure
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.ranks import Operation, RankGroup
from sglang_omni.scheduling.recent_ids import RecentIds
from sglang_omni.scheduling.step_monitor import StepMonitor
from sglang_omni.scheduling.work_clock import WorkClock

logger = logging.getLogger(__name__)

RequestBuilder = Callable[[StagePayload], RequestT | Future[RequestT]]
ResultAdapter = Callable[[StagePayload, RequestT], StagePayload]
FollowUp = Callable[[StagePayload, RequestT], RequestT | None]
StreamOutputBuilder = Callable[[StagePayload, RequestT, list[int]], list[OutgoingMessage] | None]
StreamChunkHandler = Callable[[RequestT, Any], None]
StreamDoneHandler = Callable[[RequestT, Any], FinishReason | None]

# The most stream messages of one request that are kept before its payload comes.
_MAX_EARLY = 4096


@dataclass(slots=True)
class _Active(Generic[RequestT]):
    payload: StagePayload
    request: RequestT
    num_streamed: int = 0


class OmniScheduler(Generic[RequestT]):
    """Adds new requests to the running batch between steps, and puts out the results of every step.

    The engine may hold requests that wait for input; if no other can run, the scheduler sleeps until a
    message comes. A request's failure is that request's error. A step that fails ends the requests in it and
    frees what they hold.

    An engine that is split over ranks has a scheduler in each rank's process. Rank 0 alone uses its inbox and
    outbox; it sends all that it does between two steps to the others, which do the same. A step that fails
    ends the group, because its ranks might no longer agree.

    Args:
        request_builder: Makes a request of the engine from a stage's payload, or a future of one that needs
            something else first, so that the others' steps go on. An exception is that request's error.
        result_adapter: Makes the stage's output from a finished request.
        stream_output_builder: Called after each step for each request that got tokens, with the new ones. Its
            messages are put out at once, before a result.
        stream_chunk_handler: Takes each item of a stream into this stage. Items that came before their
            request's payload follow right after ``request_builder``.
        stream_done_handler: Takes the end of such a stream, with the name of its source stage. If it returns
            a finish reason, the request ends at once with the tokens it has.
        abort_callback: Called with the id of every aborted request, after its memory is free.
        warm_up_requests: Makes small requests of all kinds of steps that the engine has.
        follow_up: Called with each request that has ended; makes the next one of the same payload and id,
            whose output goes on where that of the last one stopped. None if the output is complete.
    """

    def __init__(
        self,
        engine: Engine[RequestT],
        request_builder: RequestBuilder[RequestT],
        result_adapter: ResultAdapter[RequestT],
        stream_output_builder: StreamOutputBuilder[RequestT] | None = None,
        stream_chunk_handler: StreamChunkHandler[RequestT] | None = None,
        stream_done_handler: StreamDoneHandler[RequestT] | None = None,
        abort_callback: Callable[[str], None] | None = None,
        warm_up_requests: Callable[[], Sequence[RequestT]] = tuple,
        follow_up: FollowUp[RequestT] | None = None,
    ) -> None:
        self.inbox: Queue[Any] = Inbox[IncomingMessage | Operation]()
        self.outbox: Queue[OutgoingMessage] = Outbox()
        self.work_clock = WorkClock()
        self.steps = StepMonitor()
        self.engine = engine
        self._build_request = request_builder
        self._adapt_result = result_adapter
        self._build_stream_output = stream_output_builder
        self._handle_chunk = stream_chunk_handler
        self._handle_done = stream_done_handler
        self._abort_callback = abort_callback
        self._warm_up_requests = warm_up_requests
        self._follow_up = follow_up
        self._active: dict[str, _Active[RequestT]] = {}
        # Requests that are not built yet, each with the operation that brought it.
        self._unbuilt: dict[str, tuple[Operation, Future[RequestT]]] = {}
        self._early: dict[str, list[Operation]] = {}
        # Stream messages of a finished request may still come.
        self._over = RecentIds()
        self._stats = engine.stats()
        self._ranks: RankGroup | None = None

    def join_ranks(self, ranks: RankGroup) -> None:
        """Makes this the scheduler of one rank. Called before ``start``."""
        self._ranks = ranks

    def warm_up(self) -> None:
        """Computes the ``warm_up_requests``. Called before ``start``; nothing is left of them.

        Raises:
            Exception: Whatever the engine raises.
        """
        warm_up(self.engine, self._warm_up_requests())
        self._stats = self.engine.stats()

    def start(self) -> None:
        """Serves until ``stop``; blocks.

        Raises:
            RankLost: Another rank has ended, or a step has failed in a group of ranks.
            GpuLost: A failure has left the GPU unusable for this process.
        """
        while self._follow() if self._follows else self._lead():
            self._stats = self.engine.stats()
            if self.engine.has_work:
                self._step()
                self._stats = self.engine.stats()

    def stop(self) -> None:
        self.inbox.put(Operation("stop"))

    def abort(self, request_id: str) -> None:
        """Ends a request before the next step. It gets no result."""
        self.inbox.put(Operation("abort", request_id))

    def flush_cache(self) -> None:
        """Empties the cache of all that no request uses, before the next step."""
        self.inbox.put(Operation("flush_cache"))

    def stats(self) -> dict[str, int]:
        """The engine's numbers at the end of its last step. May be called in any thread."""
        return self._stats

    @property
    def _follows(self) -> bool:
        return self._ranks is not None and not self._ranks.leads

    def _lead(self) -> bool:
        """Does the operations in the inbox, and waits for one if the engine has no work. False to stop."""
        done: list[Operation] = []
        for operation in self._receive():
            done.append(self._apply(operation))
            if operation.kind == "stop":
                break
        if self._ranks is not None:
            self._ranks.send(done)
        return not done or done[-1].kind != "stop"

    def _follow(self) -> bool:
        """Applies rank 0's operations. Returns False if one of them is "stop"."""
        assert self._ranks is not None
        for operation in self._ranks.receive():
            if operation.kind == "stop":
                return False
            self._do(operation)
        return True

    def _receive(self) -> list[Operation]:
        received = [] if self.engine.has_work else [self.inbox.get()]
        received += [self.inbox.get() for _ in range(self.inbox.qsize())]
        return [
            item if isinstance(item, Operation) else Operation(item.type, item.request_id, item.data)
            for item in received
        ]

    def _apply(self, operation: Operation) -> Operation:
        """Does an operation on rank 0. A failure aborts its request. Returns what the others must do."""
        if self._ranks is not None and operation.kind == "new_request":
            operation = operation._replace(seed=random.getrandbits(63))
        if not operation.request_id:
            self._do(operation)
            return operation
        try:
            self._do(operation)
        except Exception as exc:  # noqa: BLE001 - one request's failure is that request's error
            after_failure(exc)
            self._fail(operation.request_id, exc)
            return Operation("abort", operation.request_id)
        return operation

    def _do(self, operation: Operation) -> None:
        match operation.kind:
            case "new_request":
                self._build(operation)
            case "built":
                self._add_built(operation.request_id)
            case "stream_chunk" | "stream_done":
                self._feed(operation)
            case "abort":
                self._abort(operation.request_id)
            case "flush_cache":
                self.engine.flush_cache()

    def _build(self, operation: Operation) -> None:
        request_id = operation.request_id
        request = self._build_request(operation.data)
        if not isinstance(request, Future):
            self._add(operation, request)
            return
        self._over.discard(request_id)
        self._unbuilt[request_id] = (operation, request)
        if not self._follows:
            request.add_done_callback(lambda _: self.inbox.put(Operation("built", request_id)))

    def _add_built(self, request_id: str) -> None:
        """Adds a request whose future is done on rank 0; the others wait for theirs."""
        waiting = self._unbuilt.pop(request_id, None)
        # None if the request was aborted before.
        if waiting is not None:
            operation, request = waiting
            self._add(operation, request.result())

    def _add(self, operation: Operation, request: RequestT) -> None:
        request_id = operation.request_id
        if operation.seed is not None:
            request.set_default_seed(operation.seed)
        self.engine.add(request)
        self._active[request_id] = _Active(operation.data, request)
        self._over.discard(request_id)
        for early in self._early.pop(request_id, ()):
            self._feed(early)

    def _feed(self, operation: Operation) -> None:
        request_id = operation.request_id
        active = self._active.get(request_id)
        if active is None:
            if request_id not in self._over:
                self._keep(operation)
            return
        if operation.kind == "stream_chunk":
            if self._handle_chunk is None:
                raise TypeError("this stage takes no stream: its scheduler has no stream_chunk_handler")
            self._handle_chunk(active.request, operation.data)
        elif self._handle_done is not None:
            reason = self._handle_done(active.request, operation.data)
            if reason is not None:
                self._finish_now(active, reason)

    def _keep(self, operation: Operation) -> None:
        early = self._early.setdefault(operation.request_id, [])
        if len(early) >= _MAX_EARLY:
            raise RuntimeError(f"{_MAX_EARLY} stream messages came before the payload of their request")
        early.append(operation)

    def _finish_now(self, active: _Active[RequestT], reason: FinishReason) -> None:
        self.engine.abort(active.request.request_id)
        active.request.finish(reason)
        self._advance(active)

    def _abort(self, request_id: str) -> None:
        self._forget(request_id)
        if self._abort_callback is not None:
            try:
                self._abort_callback(request_id)
            except Exception:
                logger.exception("the abort callback failed for request %s", request_id)

    def _step(self) -> None:
        began = self.steps.begin()
        try:
            try:
                advanced = self.engine.step()
            finally:
                self.steps.end()
        except Exception as exc:
            if self._ranks is not None:
                self._ranks.give_up(exc)
            # The cache entries of every request in a failed step are unknown. If it failed before it admitted
            # any, the same requests would fail the next step too, so all end.
            failed = [r.request_id for r in self.engine.running] or list(self._active)
            self.steps.fail(exc, failed)
            logger.exception("an engine step failed, and with it the requests %s", ", ".join(failed))
            for request_id in failed:
                self._fail(request_id, exc)
            return
        self.work_clock.add_to_all(self.engine.stepped, time.perf_counter() - began, self._kind_of_step)
        # What takes its place need only have ``put``.
        with self.outbox.together() if isinstance(self.outbox, Outbox) else nullcontext():
            for request in advanced:
                self._advance(self._active[request.request_id])

    def _kind_of_step(self, request_id: str) -> str:
        """What the last step was for a request: a language model's prefill ends with its first token."""
        active = self._active.get(request_id)
        if active is None or not isinstance(active.request, EngineRequest):
            return "step"
        return "decode" if len(active.request.output_token_ids) > 1 else "prefill"

    def _advance(self, active: _Active[RequestT]) -> None:
        """Puts out a request's new output. The request is over if it has a finish reason and no successor."""
        request_id = active.request.request_id
        following = self._following(active)
        if active.request.finish_reason is not None and following is None:
            del self._active[request_id]
            self._over.add(request_id)
            if active.request.failure is None:
                self.steps.succeed()
        if following is not None:
            self._active[request_id] = _Active(active.payload, following)
        if self._follows:
            return
        try:
            self._emit(active, ends=following is None)
        except Exception as exc:  # noqa: BLE001 - one request's failure is that request's error
            after_failure(exc)
            self.outbox.put(OutgoingMessage(request_id, "error", exc))
            self.abort(request_id)

    def _following(self, active: _Active[RequestT]) -> RequestT | None:
        """Adds the request that follows one that has ended. If it cannot be added, the one has failed."""
        request = active.request
        if self._follow_up is None or request.finish_reason is None or request.failure is not None:
            return None
        try:
            following = self._follow_up(active.payload, request)
            if following is not None:
                self.engine.add(following)
        except Exception as exc:  # noqa: BLE001 - one request's failure is that request's error
            after_failure(exc)
            request.failure = exc
            return None
        return following

    def _emit(self, active: _Active[RequestT], *, ends: bool) -> None:
        payload, request = active.payload, active.request
        if request.failure is not None:
            raise request.failure
        if self._build_stream_output is not None:
            new_tokens = request.output_token_ids[active.num_streamed :]
            active.num_streamed = len(request.output_token_ids)
            for message in self._build_stream_output(payload, request, new_tokens) or ():
                self.outbox.put(message)
        if request.finish_reason is not None and ends:
            result = self._adapt_result(payload, request)
            self.outbox.put(OutgoingMessage(request.request_id, "result", result))

    def _fail(self, request_id: str, error: Exception) -> None:
        self._forget(request_id)
        self.outbox.put(OutgoingMessage(request_id, "error", error))

    def _forget(self, request_id: str) -> None:
        self._active.pop(request_id, None)
        self._unbuilt.pop(request_id, None)
        self._early.pop(request_id, None)
        self._over.add(request_id)
        self.engine.abort(request_id)
