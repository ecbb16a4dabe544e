"""One stage with a recorded control plane, for the tests of its rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from queue import Queue
from typing import Any

from waiting import until

from sglang_omni.pipeline.stage.edges.local import LocalStageDispatcher
from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.proto import (
    AbortMessage,
    CompleteMessage,
    DataReadyMessage,
    OmniRequest,
    StagePayload,
    StreamMessage,
    SubmitMessage,
)
from sglang_omni.relay.base import create_relay
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage

WAIT_S = 60


class RecordedControlPlane:
    """Hands the stage what a test puts in, and keeps what the stage sends. Has no ``send_progress``."""

    recv_endpoint = "test://stage"

    def __init__(self) -> None:
        self.work: asyncio.Queue[Any] = asyncio.Queue()
        self.aborts: asyncio.Queue[AbortMessage] = asyncio.Queue()
        self.sent: list[tuple[str, str, Any]] = []
        self.completed: list[CompleteMessage] = []
        self.streamed: list[StreamMessage] = []
        self.closed = False

    async def start(self) -> None: ...

    async def recv(self) -> Any:
        return await self.work.get()

    async def recv_abort(self) -> AbortMessage:
        return await self.aborts.get()

    async def send_to_stage(self, target: str, endpoint: str, message: Any) -> None:
        self.sent.append((target, endpoint, message))

    async def send_complete(self, message: CompleteMessage) -> None:
        self.completed.append(message)

    async def send_stream(self, message: StreamMessage) -> None:
        self.streamed.append(message)

    def close(self) -> None:
        self.closed = True


class HandScheduler:
    """A scheduler that a test plays: it reads ``inbox`` and fills ``outbox`` itself."""

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage] = Queue()
        self.outbox: Queue[OutgoingMessage] = Queue()
        self.aborted: list[str] = []
        self.stops = 0
        self.finish: Queue[BaseException | None] = Queue()

    def start(self) -> None:
        error = self.finish.get()
        if error is not None:
            raise error

    def stop(self) -> None:
        self.stops += 1
        self.finish.put(None)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def received(self) -> list[tuple[str, str, Any]]:
        messages = [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]
        return [(message.request_id, message.type, message.data) for message in messages]


class Harness:
    """A running stage named ``s`` that may send to ``t``, ``u`` and ``v``."""

    def __init__(self, **options: Any) -> None:
        self.control_plane = options.pop("control_plane", None) or RecordedControlPlane()
        self.scheduler = options.pop("scheduler", None) or HandScheduler()
        self.dispatcher = options.pop("local_dispatcher", None) or LocalStageDispatcher()
        self.relay = options.pop("relay", None)
        if self.relay is None and "relays" not in options:
            self.relay = create_relay("shm", engine_id="s")
        options.setdefault("get_next", lambda request_id, output: None)
        options.setdefault("endpoints", {name: f"test://{name}" for name in "tuv"})
        self.stage = Stage(
            name="s",
            control_plane=self.control_plane,
            relay=self.relay,
            scheduler=self.scheduler,
            local_dispatcher=self.dispatcher,
            **options,
        )
        self.running: asyncio.Task[None] | None = None

    def submit(self, request_id: str, data: Any = None) -> StagePayload:
        payload = StagePayload(request_id, OmniRequest(None), data)
        self.control_plane.work.put_nowait(SubmitMessage(request_id, payload))
        return payload

    def emit(self, request_id: str, type: Any, data: Any = None, **fields: Any) -> None:
        self.scheduler.outbox.put(OutgoingMessage(request_id, type, data, **fields))

    async def work(self, request_id: str, output: Any) -> None:
        """Submits a request and has the scheduler answer with ``output``."""
        self.submit(request_id)
        await until(lambda: not self.scheduler.inbox.empty())
        self.scheduler.inbox.get_nowait()
        self.emit(request_id, "result", output)

    async def failure(self) -> CompleteMessage:
        """The first failure the stage reports."""
        await until(lambda: any(not message.success for message in self.control_plane.completed))
        return next(message for message in self.control_plane.completed if not message.success)

    async def sends(self, count: int) -> list[tuple[str, DataReadyMessage]]:
        """The first ``count`` messages to other stages."""
        await until(lambda: len(self.control_plane.sent) >= count)
        return [(target, message) for target, _, message in self.control_plane.sent]

    async def still_works(self) -> None:
        """Fails unless the stage serves another request."""
        before = len(self.control_plane.completed)
        self.submit("another")
        await until(lambda: not self.scheduler.inbox.empty())
        assert self.running is not None
        assert not self.running.done()
        assert self.scheduler.received()[-1][:2] == ("another", "new_request")
        self.emit("another", "error", RuntimeError("end"))
        await until(lambda: len(self.control_plane.completed) > before)


@asynccontextmanager
async def harness(**options: Any) -> AsyncIterator[Harness]:
    one = Harness(**options)
    one.running = asyncio.create_task(one.stage.run())
    await asyncio.sleep(0)
    try:
        yield one
    finally:
        one.running.cancel()
        await asyncio.wait({one.running}, timeout=WAIT_S)


def payload(request_id: str, data: Any = None) -> StagePayload:
    return StagePayload(request_id, OmniRequest(None), data)
