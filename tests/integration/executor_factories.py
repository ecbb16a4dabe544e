"""Stages of the legacy form for tests: executors, an engine, and routes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from sglang_omni.executors import (
    EngineExecutor,
    Executor,
    FusedExecutor,
    PreprocessingExecutor,
    create_fused_executor,
)
from sglang_omni.proto import StagePayload


def upper() -> PreprocessingExecutor:
    return PreprocessingExecutor(lambda payload: payload.data["raw_inputs"].upper())


def exclaim() -> PreprocessingExecutor:
    return PreprocessingExecutor(lambda payload: payload.data + "!")


def reverse_async() -> PreprocessingExecutor:
    async def reverse(payload: StagePayload) -> StagePayload:
        await asyncio.sleep(0)
        return StagePayload(payload.request_id, payload.request, payload.data[::-1])

    return PreprocessingExecutor(reverse)


def passing() -> PreprocessingExecutor:
    return PreprocessingExecutor(lambda payload: payload)


def rendezvous() -> PreprocessingExecutor:
    """Two requests, of which none ends before the other has begun."""
    barrier = threading.Barrier(2, timeout=60)

    def meet(payload: StagePayload) -> str:
        barrier.wait()
        return payload.request_id

    return PreprocessingExecutor(meet)


class HalvingEngine:
    """Halves even numbers, counting up to the half as a stream; holds a 0 until it is aborted."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.counts: dict[str, range] = {}
        self.log: list[str] = []

    async def start(self) -> None:
        self.log.append("start")

    async def stop(self) -> None:
        self.log.append("stop")

    async def add_request(self, request_id: str, data: Any) -> None:
        if not isinstance(data, int):
            raise TypeError("a number, please")
        self.inputs[request_id] = data
        self.counts[request_id] = range(data // 2)

    async def get_result(self, request_id: str) -> int:
        if self.inputs[request_id] == 0:
            await asyncio.Event().wait()
        number = self.inputs.pop(request_id)
        if number % 2:
            raise ValueError("cannot do odd numbers")
        return number // 2

    async def stream(self, request_id: str) -> AsyncIterator[int]:
        for count in self.counts.pop(request_id):
            yield count

    async def abort(self, request_id: str) -> None:
        self.inputs.pop(request_id, None)


engines: list[HalvingEngine] = []


def engine() -> EngineExecutor:
    engines.append(HalvingEngine())
    return EngineExecutor(engines[-1], lambda payload: payload.data["raw_inputs"])


def describe(payload: StagePayload) -> str:
    return f"{payload.data['model_output']} {payload.data['raw_inputs']}"


def describing() -> PreprocessingExecutor:
    return PreprocessingExecutor(describe)


def fused() -> FusedExecutor:
    entries = [
        {"factory": "executor_factories.engine"},
        {"factory": "executor_factories.describing", "args": {}},
    ]
    return FusedExecutor([create_fused_executor(executors=entries), lambda payload: payload])


class Breaking(Executor):
    async def add_request(self, payload: StagePayload) -> None:
        self.added.set()

    async def start(self) -> None:
        self.added = asyncio.Event()

    async def get_result(self) -> StagePayload:
        await self.added.wait()
        raise OSError("the engine is on fire")

    async def abort(self, request_id: str) -> None:
        return


def breaking() -> Breaking:
    return Breaking()


def end(request_id: str, output: StagePayload) -> None:
    return None


def to_second_if_long(request_id: str, output: StagePayload) -> str | None:
    return "second" if len(output.data) > 3 else None


def to_both(request_id: str, output: StagePayload) -> list[str]:
    return ["left", "right"]


def to_join(request_id: str, output: StagePayload) -> str:
    return "join"
