"""An autoregressive engine as a stage's scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, Queue, SimpleQueue
from typing import Any

from sglang_omni.engines.base import Engine
from sglang_omni.engines.request import EngineRequest
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox

logger = logging.getLogger(__name__)

RequestBuilder = Callable[[StagePayload], EngineRequest]
ResultAdapter = Callable[[StagePayload, EngineRequest], StagePayload]
StreamOutputBuilder = Callable[[StagePayload, EngineRequest, list[int]], list[OutgoingMessage] | None]
StreamChunkHandler = Callable[[EngineRequest, Any], None]

# Put into the inbox to interrupt a wait for messages.
_WAKE = IncomingMessage("", "stream_done")


@dataclass(slots=True)
class _Running:
    payload: StagePayload
    request: EngineRequest
    num_streamed: int = 0


class OmniScheduler:
    """Takes new requests into the running batch between steps, and hands out what every step produced.

    Args:
        request_builder: A stage's payload as a request of the engine. What it raises is the request's error.
        result_adapter: The stage's output for a finished request.
        stream_output_builder: Called once a step for each request that got tokens, with the new ones;
            its messages go out at once, before the result where that is due.
        stream_chunk_handler: Takes each item of a stream that flows into this stage.
        stream_done_handler: Takes the end of such a stream.
        abort_callback: Called with the id of every aborted request, after its pages are free.
    """

    def __init__(
        self,
        engine: Engine,
        request_builder: RequestBuilder,
        result_adapter: ResultAdapter,
        stream_output_builder: StreamOutputBuilder | None = None,
        stream_chunk_handler: StreamChunkHandler | None = None,
        stream_done_handler: StreamChunkHandler | None = None,
        abort_callback: Callable[[str], None] | None = None,
    ) -> None:
        self.inbox: Queue[IncomingMessage] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()
        self.engine = engine
        self._build_request = request_builder
        self._adapt_result = result_adapter
        self._build_stream_output = stream_output_builder
        self._handle_chunk = stream_chunk_handler
        self._handle_done = stream_done_handler
        self._abort_callback = abort_callback
        self._running: dict[str, _Running] = {}
        # What must not wait behind the inbox's messages, each to be run between steps; None stops.
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def start(self) -> None:
        """Serves until ``stop``; blocks."""
        while True:
            self._receive(wait=not self.engine.has_work)
            if self._run_commands():
                return
            if self.engine.has_work:
                self._step()

    def stop(self) -> None:
        self._command(None)

    def abort(self, request_id: str) -> None:
        """Ends a request before the next step. It gets no result."""
        self._command(partial(self._abort, request_id))

    def flush_cache(self) -> None:
        """Before the next step, forgets the prefixes that no request uses."""
        self._command(self.engine.flush_cache)

    def _command(self, command: Callable[[], None] | None) -> None:
        self._commands.put(command)
        self.inbox.put(_WAKE)

    def _receive(self, *, wait: bool) -> None:
        while True:
            try:
                message = self.inbox.get(block=wait)
            except Empty:
                return
            wait = False
            if message is not _WAKE:
                self._handle(message)

    def _run_commands(self) -> bool:
        """Whether to stop."""
        while not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return True
            command()
        return False

    def _abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)
        self.engine.abort(request_id)
        if self._abort_callback is not None:
            self._abort_callback(request_id)

    def _handle(self, message: IncomingMessage) -> None:
        request_id = message.request_id
        try:
            if message.type == "new_request":
                request = self._build_request(message.data)
                self.engine.add(request)
                self._running[request_id] = _Running(message.data, request)
                return
            handler = self._handle_chunk if message.type == "stream_chunk" else self._handle_done
            if handler is None:
                raise TypeError("this stage takes no stream: its scheduler has no handler for one")
            # Items may still arrive for a request that is over.
            if (running := self._running.get(request_id)) is not None:
                handler(running.request, message.data)
        except Exception as exc:  # noqa: BLE001 - one request's failure is that request's error
            self._fail(request_id, exc)

    def _step(self) -> None:
        try:
            advanced = self.engine.step()
        except Exception as exc:
            # What a failed step left in the cache is unknown to every request that was in it.
            logger.exception("engine step failed; its %d requests fail with it", len(self.engine.running))
            for request in self.engine.running:
                self._fail(request.request_id, exc)
            return
        for request in advanced:
            running = self._running[request.request_id]
            try:
                self._emit(running)
            except Exception as exc:  # noqa: BLE001 - one request's failure is that request's error
                self._fail(request.request_id, exc)

    def _emit(self, running: _Running) -> None:
        payload, request = running.payload, running.request
        if self._build_stream_output is not None:
            new_tokens = request.output_token_ids[running.num_streamed :]
            running.num_streamed = len(request.output_token_ids)
            for message in self._build_stream_output(payload, request, new_tokens) or ():
                self.outbox.put(message)
        if request.finish_reason is not None:
            result = self._adapt_result(payload, request)
            del self._running[request.request_id]
            self.outbox.put(OutgoingMessage(request.request_id, "result", result))

    def _fail(self, request_id: str, error: Exception) -> None:
        self._running.pop(request_id, None)
        self.engine.abort(request_id)
        self.outbox.put(OutgoingMessage(request_id, "error", error))
