"""An autoregressive engine as a stage's scheduler."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import Queue
from typing import Any

from sglang_omni.engines.base import Engine
from sglang_omni.engines.request import EngineRequest, FinishReason
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.ranks import Operation, RankGroup
from sglang_omni.scheduling.recent_ids import RecentIds
from sglang_omni.scheduling.step_monitor import StepMonitor
from sglang_omni.scheduling.work_clock import WorkClock

logger = logging.getLogger(__name__)

RequestBuilder = Callable[[StagePayload], EngineRequest]
ResultAdapter = Callable[[StagePayload, EngineRequest], StagePayload]
StreamOutputBuilder = Callable[[StagePayload, EngineRequest, list[int]], list[OutgoingMessage] | None]
StreamChunkHandler = Callable[[EngineRequest, Any], None]
StreamDoneHandler = Callable[[EngineRequest, Any], FinishReason | None]

# Stream messages that one request may have here before its payload comes.
_EARLY_MOST = 4096


@dataclass(slots=True)
class _Active:
    payload: StagePayload
    request: EngineRequest
    num_streamed: int = 0


class OmniScheduler:
    """Takes new requests into the running batch between steps, and hands out what every step produced.

    The engine may hold requests whose next input has not come: where no other can run, the scheduler sleeps
    until a message comes. A request's failure is that request's error; a step that fails ends the requests
    that were running in it, and frees what they hold.

    An engine that is split over ranks has a scheduler in each rank's process, and each does the same. Rank 0
    alone has an inbox and an outbox that anybody uses; what it did between two steps it tells the others. A
    step that fails ends the group, whose ranks could no longer be known to agree.

    Args:
        request_builder: A stage's payload as a request of the engine. What it raises is the request's error.
        result_adapter: The stage's output for a finished request.
        stream_output_builder: Called once a step for each request that got tokens, with the new ones;
            its messages go out at once, before the result where that is due.
        stream_chunk_handler: Takes each item of a stream that flows into this stage. Items that came before
            their request's payload are handed over right after ``request_builder``.
        stream_done_handler: Takes the end of such a stream, with the name of the stage it came from. A finish
            reason that it returns ends the request there and then, with the tokens it has.
        abort_callback: Called with the id of every aborted request, after its memory is free.
    """

    def __init__(
        self,
        engine: Engine,
        request_builder: RequestBuilder,
        result_adapter: ResultAdapter,
        stream_output_builder: StreamOutputBuilder | None = None,
        stream_chunk_handler: StreamChunkHandler | None = None,
        stream_done_handler: StreamDoneHandler | None = None,
        abort_callback: Callable[[str], None] | None = None,
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
        self._active: dict[str, _Active] = {}
        self._early: dict[str, list[Operation]] = {}
        # Stream messages of a request that is over may still come.
        self._over = RecentIds()
        self._stats = engine.stats()
        self._ranks: RankGroup | None = None

    def join_ranks(self, ranks: RankGroup) -> None:
        """Makes this the scheduler of one rank. Before ``start``."""
        self._ranks = ranks

    def start(self) -> None:
        """Serves until ``stop``; blocks.

        Raises:
            RankLost: Another rank is gone, or a step has failed in a group of ranks.
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
        """Before the next step, forgets the prefixes that no request uses."""
        self.inbox.put(Operation("flush_cache"))

    def stats(self) -> dict[str, int]:
        """The engine's, as of the end of its last step. From any thread."""
        return self._stats

    @property
    def _follows(self) -> bool:
        return self._ranks is not None and not self._ranks.leads

    def _lead(self) -> bool:
        """Does what has come; False to stop. Waits for something where the engine has nothing to do."""
        done: list[Operation] = []
        for operation in self._receive():
            done.append(self._apply(operation))
            if operation.kind == "stop":
                break
        if self._ranks is not None:
            self._ranks.send(done)
        return not done or done[-1].kind != "stop"

    def _follow(self) -> bool:
        """Does what rank 0 has done; False to stop."""
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
        """Does it, where a failure is its request's. Returns what it came to."""
        if self._ranks is not None and operation.kind == "new_request":
            operation = operation._replace(seed=random.getrandbits(63))
        if not operation.request_id:
            self._do(operation)
            return operation
        try:
            self._do(operation)
        except Exception as exc:  # noqa: BLE001 - one request's failure is that request's error
            self._fail(operation.request_id, exc)
            return Operation("abort", operation.request_id)
        return operation

    def _do(self, operation: Operation) -> None:
        match operation.kind:
            case "new_request":
                self._add(operation)
            case "stream_chunk" | "stream_done":
                self._feed(operation)
            case "abort":
                self._abort(operation.request_id)
            case "flush_cache":
                self.engine.flush_cache()

    def _add(self, operation: Operation) -> None:
        request_id, payload = operation.request_id, operation.data
        request = self._build_request(payload)
        if operation.seed is not None and request.sampling.seed is None:
            request.sampling = replace(request.sampling, seed=operation.seed)
            request.generator.seed(operation.seed)
        self.engine.add(request)
        self._active[request_id] = _Active(payload, request)
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
        if len(early) >= _EARLY_MOST:
            raise RuntimeError(f"{_EARLY_MOST} stream messages came before the payload of their request")
        early.append(operation)

    def _finish_now(self, active: _Active, reason: FinishReason) -> None:
        request = active.request
        self.engine.abort(request.request_id)
        request.finish_reason = reason
        if request.detokenizer is not None:
            request.detokenizer.finish()
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
            # What a failed step left in the cache is unknown to every request that was in it. Where it failed
            # before any was admitted, the same ones would fail the next step too.
            failed = [r.request_id for r in self.engine.running] or list(self._active)
            self.steps.fail(exc, failed)
            logger.exception("an engine step failed, and with it the requests %s", ", ".join(failed))
            for request_id in failed:
                self._fail(request_id, exc)
            return
        self.work_clock.add_to_all(self.engine.stepped, time.perf_counter() - began)
        for request in advanced:
            self._advance(self._active[request.request_id])

    def _advance(self, active: _Active) -> None:
        """Hands out what is new of a request, which is over if it has a finish reason."""
        request_id = active.request.request_id
        if active.request.finish_reason is not None:
            del self._active[request_id]
            self._over.add(request_id)
            if active.request.failure is None:
                self.steps.succeed()
        if self._follows:
            return
        try:
            self._emit(active)
        except Exception as exc:  # noqa: BLE001 - one request's failure is that request's error
            self.outbox.put(OutgoingMessage(request_id, "error", exc))
            self.abort(request_id)

    def _emit(self, active: _Active) -> None:
        payload, request = active.payload, active.request
        if request.failure is not None:
            raise request.failure
        if self._build_stream_output is not None:
            new_tokens = request.output_token_ids[active.num_streamed :]
            active.num_streamed = len(request.output_token_ids)
            for message in self._build_stream_output(payload, request, new_tokens) or ():
                self.outbox.put(message)
        if request.finish_reason is not None:
            result = self._adapt_result(payload, request)
            self.outbox.put(OutgoingMessage(request.request_id, "result", result))

    def _fail(self, request_id: str, error: Exception) -> None:
        self._forget(request_id)
        self.outbox.put(OutgoingMessage(request_id, "error", error))

    def _forget(self, request_id: str) -> None:
        self._active.pop(request_id, None)
        self._early.pop(request_id, None)
        self._over.add(request_id)
        self.engine.abort(request_id)
