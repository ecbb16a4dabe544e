"""An executor that is a chain of other executors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from sglang_omni.compat.executors.executor import Executor, ExecutorRun, RequestTasks, StreamFn
from sglang_omni.compat.executors.preprocessing_executor import PreprocessingExecutor
from sglang_omni.config import import_string
from sglang_omni.proto import StagePayload


class FusedExecutor(Executor):
    """Runs each request through several executors or plain functions in turn.

    Different requests may be in different links at once. Only the last link's stream goes to the caller.
    """

    def __init__(self, executors: Sequence[Executor | Callable[[StagePayload], Any]]) -> None:
        if not executors:
            raise ValueError("FusedExecutor requires at least one executor")
        self._links = [
            ExecutorRun(link if isinstance(link, Executor) else PreprocessingExecutor(link))
            for link in executors
        ]
        self._tasks = RequestTasks()

    async def start(self) -> None:
        for link in self._links:
            await link.start()

    async def stop(self) -> None:
        for link in reversed(self._links):
            await link.stop()

    async def add_request(self, payload: StagePayload) -> None:
        self._tasks.start(payload, self._run(payload))

    async def get_result(self) -> StagePayload:
        return await self._tasks.next()

    async def abort(self, request_id: str) -> None:
        self._tasks.cancel(request_id)
        for link in self._links:
            await link.executor.abort(request_id)

    def stream(self, request_id: str) -> AsyncIterator[Any] | None:
        return self._links[-1].executor.stream(request_id)

    def set_stream_fn(self, emit: StreamFn) -> None:
        self._links[-1].executor.set_stream_fn(emit)

    async def _run(self, payload: StagePayload) -> StagePayload:
        for link in self._links:
            payload = await (await link.submit(payload))
        return payload


def create_fused_executor(*, executors: list[dict[str, Any]]) -> FusedExecutor:
    """A stage's factory: chains the executors of ``[{"factory": dotted path, "args": {...}}, ...]``."""
    return FusedExecutor([import_string(entry["factory"])(**entry.get("args", {})) for entry in executors])
