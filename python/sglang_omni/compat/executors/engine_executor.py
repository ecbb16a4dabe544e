"""An executor around an engine."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from sglang_omni.compat.executors.executor import Executor, RequestTasks, into_payload
from sglang_omni.proto import StagePayload

if TYPE_CHECKING:
    from sglang_omni.engines.base import Engine
    from sglang_omni.engines.request import BaseRequest


class AsyncEngine(Protocol):
    """An engine that runs by itself. Its ``start``, ``stop`` and ``stream(request_id)`` are optional."""

    async def add_request(self, request_id: str, data: Any) -> None: ...

    async def get_result(self, request_id: str) -> Any: ...

    async def abort(self, request_id: str) -> None: ...


class EngineExecutor(Executor):
    """Runs requests on an engine, several at once. Results come in the order of completion.

    Args:
        engine: An ``OmniEngine`` or any other ``engines.base.Engine``, which is stepped in a thread of its
            own, or an engine with asynchronous methods.
        request_builder: ``(payload)`` -> the engine's request: an ``EngineRequest`` of the payload's id, or
            for an asynchronous engine, the data for ``add_request``.
        result_builder: ``(payload, result)`` -> the resulting payload, or its data. ``result`` is the
            finished ``EngineRequest``, or the result of an asynchronous engine's ``get_result``. By default
            the payload's data gets it as ``"model_output"``: an asynchronous engine's unchanged, the other's
            as a dict of ``token_ids`` and ``finish_reason``.
        stream_builder: ``(payload, item)`` -> the chunk for the caller, or None for no chunk. An item of a
            stepped engine is a token. By default a dict is passed on, a token id becomes
            ``{"token_ids": [id]}``, and anything else ``{"data": item}``.
    """

    def __init__(
        self,
        engine: Engine[Any] | AsyncEngine,
        request_builder: Callable[[StagePayload], Any],
        result_builder: Callable[[StagePayload, Any], Any] | None = None,
        stream_builder: Callable[[StagePayload | None, Any], Any] | None = None,
    ) -> None:
        self._tasks = RequestTasks()
        if hasattr(engine, "add_request"):
            self._engine = cast(AsyncEngine, engine)
            self._build_result = result_builder or _store_model_output
        else:
            # Engines import torch, which an asynchronous one may not need.
            from sglang_omni.compat.executors.stepped_engine import SteppedEngine

            self._engine = SteppedEngine(engine, crashed=self._tasks.crash)
            self._build_result = result_builder or _store_answer
        self._build_request = request_builder
        self._build_chunk = stream_builder or _default_chunk

    async def start(self) -> None:
        await _call_if_any(self._engine, "start")

    async def stop(self) -> None:
        await _call_if_any(self._engine, "stop")

    async def add_request(self, payload: StagePayload) -> None:
        request_id = payload.request_id
        await self._engine.add_request(request_id, self._build_request(payload))
        self._tasks.start(payload, self._await_result(payload))

    async def get_result(self) -> StagePayload:
        return await self._tasks.next()

    async def abort(self, request_id: str) -> None:
        self._tasks.cancel(request_id)
        await self._engine.abort(request_id)

    async def stream(self, request_id: str) -> AsyncIterator[Any]:
        items = getattr(self._engine, "stream", None)
        if items is None:
            return
        async for item in items(request_id):
            chunk = self._build_chunk(self._tasks.payload(request_id), item)
            if chunk is not None:
                yield chunk
        flush = getattr(self._build_chunk, "flush", None)
        if flush is not None and (chunk := flush(self._tasks.payload(request_id))) is not None:
            yield chunk

    async def _await_result(self, payload: StagePayload) -> StagePayload:
        result = await self._engine.get_result(payload.request_id)
        return into_payload(payload, self._build_result(payload, result))


async def _call_if_any(engine: Any, name: str) -> None:
    method = getattr(engine, name, None)
    if method is not None and inspect.isawaitable(called := method()):
        await called


def _store_model_output(payload: StagePayload, result: Any) -> StagePayload:
    data = payload.data if isinstance(payload.data, dict) else {}
    payload.data = {**data, "model_output": result}
    return payload


def _store_answer(payload: StagePayload, request: BaseRequest) -> StagePayload:
    answer = {"token_ids": request.output_token_ids, "finish_reason": request.finish_reason}
    return _store_model_output(payload, answer)


def _default_chunk(payload: StagePayload | None, item: Any) -> Any:
    if isinstance(item, dict):
        return item
    if isinstance(item, tuple) and item:
        item = item[0]
    return {"token_ids": [item]} if isinstance(item, int) else {"data": item}
