"""The interface of executors, and the scheduler through which a stage runs one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Queue
from typing import Any

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.step_monitor import StepMonitor

StreamFn = Callable[..., None]


class Executor(ABC):
    """Takes payloads and gives results, in any order.

    All methods run in one event loop, that of the scheduler which ``as_scheduler`` returns.
    """

    async def start(self) -> None:
        """Called once before the first request."""
        return

    async def stop(self) -> None:
        """Called once after the last request."""
        return

    @abstractmethod
    async def add_request(self, payload: StagePayload) -> None:
        """Takes a payload. An exception fails that request. Several calls may run at once."""

    @abstractmethod
    async def get_result(self) -> StagePayload:
        """Waits for the next result.

        An exception with a ``request_id`` attribute fails that request. Any other ends the executor.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """Stops working on a request, if it is known."""

    def stream(self, request_id: str) -> AsyncIterator[Any] | None:
        """Partial output of a request for its caller; None if the executor has none."""
        return None

    def set_stream_fn(self, emit: StreamFn) -> None:
        """Receives ``emit(request_id, data, target_stage, metadata=None)``, which sends a stage chunks."""
        return

    def as_scheduler(self) -> ExecutorScheduler:
        """The scheduler through which a stage runs this executor."""
        return ExecutorScheduler(self)


def failed(error: BaseException, request_id: str) -> BaseException:
    """``error``, marked as the failure of one request."""
    error.request_id = request_id  # type: ignore[attr-defined]
    return error


def into_payload(payload: StagePayload, result: Any) -> StagePayload:
    """``result`` if it is a payload; else ``payload`` with ``result`` as its data."""
    if isinstance(result, StagePayload):
        return result
    return StagePayload(request_id=payload.request_id, request=payload.request, data=result)


class RequestTasks:
    """One task for each request of an executor; results and failures come in the order of their ends."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[StagePayload, asyncio.Task[StagePayload]]] = {}
        self._ended: asyncio.Queue[tuple[str, asyncio.Task[StagePayload]] | Exception] = asyncio.Queue()

    def start(self, payload: StagePayload, work: Coroutine[Any, Any, StagePayload]) -> None:
        request_id = payload.request_id
        task = asyncio.create_task(work)
        self._running[request_id] = (payload, task)
        task.add_done_callback(lambda task: self._ended.put_nowait((request_id, task)))

    def payload(self, request_id: str) -> StagePayload | None:
        """What a request began with, until ``next`` has given its result or it is cancelled."""
        payload, _ = self._running.get(request_id, (None, None))
        return payload

    def cancel(self, request_id: str) -> None:
        _, task = self._running.pop(request_id, (None, None))
        if task is not None:
            task.cancel()

    def crash(self, error: Exception) -> None:
        """Makes ``next`` raise ``error``, which is no single request's."""
        self._ended.put_nowait(error)

    async def next(self) -> StagePayload:
        """Waits for the next result; raises as ``Executor.get_result`` does."""
        while True:
            ended = await self._ended.get()
            if isinstance(ended, Exception):
                raise ended
            request_id, task = ended
            _, running = self._running.get(request_id, (None, None))
            # After an abort, the id may belong to a new request.
            if running is task:
                del self._running[request_id]
            if task.cancelled():
                continue
            if (error := task.exception()) is not None:
                raise failed(error, request_id)
            return task.result()


class ExecutorRun:
    """Runs an executor, and gives each request's result to the task that waits for it."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._waiting: dict[str, asyncio.Future[StagePayload]] = {}
        self._collecting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.executor.start()
        self._collecting = asyncio.create_task(self._collect())

    async def stop(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait({self._collecting})
        await self.executor.stop()

    async def submit(self, payload: StagePayload) -> asyncio.Future[StagePayload]:
        """Adds a request. The future gets its result, or the executor's exception for it."""
        request_id = payload.request_id
        result: asyncio.Future[StagePayload] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = result
        result.add_done_callback(lambda _: self._waiting.pop(request_id, None))
        try:
            await self.executor.add_request(payload)
        except BaseException:
            result.cancel()
            raise
        return result

    async def wait_failed(self) -> None:
        """Waits until the executor fails, and raises its exception."""
        assert self._collecting is not None
        await asyncio.shield(self._collecting)

    async def _collect(self) -> None:
        while True:
            try:
                result = await self.executor.get_result()
            except Exception as exc:
                request_id = getattr(exc, "request_id", None)
                if request_id is None:
                    raise
                self._finish(request_id, error=exc)
            else:
                self._finish(result.request_id, result)

    def _finish(
        self, request_id: str, result: StagePayload | None = None, error: Exception | None = None
    ) -> None:
        # No task waits for an aborted request.
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting.done():
            return
        if error is not None:
            waiting.set_exception(error)
        elif result is not None:
            waiting.set_result(result)


class ExecutorScheduler:
    """A stage's scheduler that runs an executor in an event loop of its own."""

    def __init__(self, executor: Executor) -> None:
        self.inbox: Queue[IncomingMessage | None] = Queue()
        self.outbox: Queue[OutgoingMessage] = Queue()
        self.steps = StepMonitor()
        self._run = ExecutorRun(executor)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._lost: asyncio.Future[None]
        executor.set_stream_fn(self._emit)

    def start(self) -> None:
        """Serves requests until ``stop``; blocks. If the executor fails, raises its exception.

        Raises:
            GpuLost: A failure has left the GPU unusable for this process.
        """
        asyncio.run(self._serve())

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._abort(request_id), self._loop)

    async def _serve(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        await self._run.start()
        failure = asyncio.create_task(self._run.wait_failed())
        self._lost = loop.create_future()
        reader = ThreadPoolExecutor(1, thread_name_prefix="inbox")
        try:
            while True:
                reading = loop.run_in_executor(reader, self.inbox.get)
                either: set[asyncio.Future[Any]] = {reading, failure, self._lost}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                for end in (failure, self._lost):
                    if end.done():
                        self.inbox.put(None)  # ends the reader's thread
                        end.result()
                if (message := reading.result()) is None:
                    return
                self._accept(message)
        finally:
            failure.cancel()
            for task in self._running.values():
                task.cancel()
            await self._run.stop()
            reader.shutdown()

    def _accept(self, message: IncomingMessage) -> None:
        request_id = message.request_id
        if message.type == "new_request":
            task = self._running[request_id] = asyncio.create_task(self._answer(message.data))
            task.add_done_callback(partial(self._on_answered, request_id))
        elif message.type == "stream_chunk":
            error = TypeError(
                "an executor takes whole payloads, but the stage received a stream chunk: remove the stage "
                "from stream_to, or give it a factory whose scheduler handles stream_chunk messages"
            )
            self.outbox.put(OutgoingMessage(request_id, "error", error))

    def _on_answered(self, request_id: str, task: asyncio.Task[None]) -> None:
        self._running.pop(request_id, None)
        if not task.cancelled() and (lost := task.exception()) is not None and not self._lost.done():
            self._lost.set_exception(lost)

    async def _answer(self, payload: StagePayload) -> None:
        request_id = payload.request_id
        streaming: asyncio.Task[None] | None = None
        try:
            result = await self._run.submit(payload)
            streaming = asyncio.create_task(self._forward_stream(request_id))
            done = await result
            await streaming
        except Exception as exc:  # noqa: BLE001  whatever it raises is that request's error
            self.steps.fail(exc, (request_id,))
            self.outbox.put(OutgoingMessage(request_id, "error", exc))
        else:
            self.steps.succeed()
            self.outbox.put(OutgoingMessage(request_id, "result", done))
        finally:
            if streaming is not None:
                streaming.cancel()

    async def _forward_stream(self, request_id: str) -> None:
        chunks = self._run.executor.stream(request_id)
        if chunks is None:
            return
        async for chunk in chunks:
            self.outbox.put(OutgoingMessage(request_id, "stream", chunk, target="coordinator"))

    def _emit(
        self, request_id: str, data: object, target_stage: str, metadata: dict[str, object] | None = None
    ) -> None:
        self.outbox.put(OutgoingMessage(request_id, "stream", data, target=target_stage, metadata=metadata))

    async def _abort(self, request_id: str) -> None:
        task = self._running.get(request_id)
        if task is not None:
            task.cancel()
        await self._run.executor.abort(request_id)
