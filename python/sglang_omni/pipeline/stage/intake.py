"""How what has come for a request, whichever way, becomes work for the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_omni.config.instances import stage_of
from sglang_omni.pipeline.stage.backpressure import Room
from sglang_omni.pipeline.stage.input import InputHandler
from sglang_omni.pipeline.stage.requests import RequestTable
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import Replicas, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage


class Intake:
    """Merges payloads, and holds back what a request's scheduler is not to see yet.

    Sources are instances; what the input handler and the scheduler are told of them are their stages.

    Args:
        requests: The stage's requests; those that were dropped get nothing any more.
        room: Where the scheduler's messages go.
        input_handler: Says when a request's payloads are complete.
        streams_may_start: Whether chunks may come before the payload of their request.
        fail: ``fail(request_id, error)`` ends a request; the error as it was raised, or its text.
    """

    def __init__(
        self,
        requests: RequestTable,
        room: Room,
        input_handler: InputHandler,
        *,
        streams_may_start: bool,
        fail: Callable[[str, str | BaseException], None],
    ) -> None:
        self._requests = requests
        self._room = room
        self._input_handler = input_handler
        self._streams_may_start = streams_may_start
        self._fail = fail

    def payload(
        self, request_id: str, source: str | None, payload: Any, nbytes: int = 0, replicas: Replicas = None
    ) -> None:
        """A payload of ``source``, None for the coordinator; ``nbytes`` of it came through a relay."""
        if self._requests.is_dropped(request_id):
            return
        record = self._requests.receive_payload(request_id, source, replicas)
        record.nbytes += nbytes
        try:
            if not isinstance(payload, StagePayload):
                raise TypeError(f"expected a StagePayload, got a {type(payload).__name__}")
            sender = "coordinator" if source is None else stage_of(source)
            merged = self._input_handler.receive(request_id, sender, payload)
        except Exception as exc:  # noqa: BLE001  a merge function may raise anything
            self._fail(request_id, exc)
            return
        if merged is None:
            return
        record.started = True
        record.running += 1
        self._room.put(IncomingMessage(request_id, "new_request", merged), record.nbytes)
        for held in record.held:
            self._room.put(held)
        record.held.clear()
        record.nbytes = 0

    def chunk(
        self, request_id: str, source: str, item: StreamItem, nbytes: int = 0, replicas: Replicas = None
    ) -> None:
        """A chunk of the stream that ``source`` sends; ``nbytes`` came through a relay."""
        self._stream(request_id, source, IncomingMessage(request_id, "stream_chunk", item), nbytes, replicas)

    def end(self, request_id: str, source: str, error: str | None, replicas: Replicas = None) -> None:
        """The stream that ``source`` sends has ended, or has failed with ``error``."""
        if error is not None:
            self._fail(request_id, f"stream from {source!r} failed: {error}")
        else:
            done = IncomingMessage(request_id, "stream_done", stage_of(source))
            self._stream(request_id, source, done, 0, replicas)

    def _stream(
        self, request_id: str, source: str, message: IncomingMessage, nbytes: int, replicas: Replicas
    ) -> None:
        if self._requests.is_dropped(request_id):
            return
        record = self._requests.receive_stream(request_id, source, replicas)
        if record is None:
            return
        if record.started or self._streams_may_start:
            self._room.put(message, nbytes)
        elif record.has_payload or message.type == "stream_done":
            try:
                record.hold(message)
                record.nbytes += nbytes
            except RuntimeError as exc:
                self._fail(request_id, str(exc))
        else:
            self._fail(
                request_id,
                f"a stream chunk from {source!r} arrived before the request's payload; a stage that can "
                "start from a stream sets can_accept_stream_before_payload",
            )
