"""An executor around one function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from sglang_omni.compat.executors.executor import Executor, into_payload
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.step_monitor import StepMonitor
from sglang_omni.scheduling.threads import on_this_gpu


class PreprocessingExecutor(Executor):
    """Calls ``processor(payload)`` for each request: an async one in the event loop, others in a thread.

    Its result becomes the ``data`` of the resulting payload, unless it is a StagePayload.
    """

    def __init__(self, processor: Callable[[StagePayload], Any]) -> None:
        self._processor = processor
        self._is_async = inspect.iscoroutinefunction(processor) or inspect.iscoroutinefunction(
            getattr(processor, "__call__", None)  # noqa: B004  the method of an object that acts as a function
        )
        self._results: asyncio.Queue[StagePayload] = asyncio.Queue()
        self._running: set[str] = set()
        self.steps = StepMonitor()

    async def add_request(self, payload: StagePayload) -> None:
        request_id = payload.request_id
        self._running.add(request_id)
        try:
            if self._is_async:
                result = await self._processor(payload)
            else:
                result = await asyncio.to_thread(on_this_gpu(self._process), payload)
        finally:
            aborted = request_id not in self._running
            self._running.discard(request_id)
        if not aborted:
            self._results.put_nowait(into_payload(payload, result))

    def _process(self, payload: StagePayload) -> Any:
        self.steps.begin()
        try:
            return self._processor(payload)
        finally:
            self.steps.end()

    async def get_result(self) -> StagePayload:
        return await self._results.get()

    async def abort(self, request_id: str) -> None:
        self._running.discard(request_id)
