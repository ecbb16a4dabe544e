"""A coordinator over real sockets, with the stages played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from sglang_omni.pipeline.coordinator import Coordinator, requests
from sglang_omni.pipeline.coordinator import coordinator as module
from sglang_omni.pipeline.transport.control_plane import StageControlPlane
from sglang_omni.proto import CompleteMessage, ProgressMessage, StreamMessage, SubmitMessage

WAIT_S = 60


class Pipeline:
    """A coordinator and the control planes of stages ``first``, ``text`` and ``audio``."""

    def __init__(self, directory: Path, **options: Any) -> None:
        endpoint = {
            name: f"ipc://{directory}/{name}" for name in ("completion", "abort", "first", "text", "audio")
        }
        self.coordinator = Coordinator(endpoint["completion"], endpoint["abort"], "first", **options)
        self.stages = {
            name: StageControlPlane(name, endpoint[name], endpoint["completion"], endpoint["abort"])
            for name in ("first", "text", "audio")
        }
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        await self.coordinator.start()
        for name, stage in self.stages.items():
            await stage.start()
            self.coordinator.register_stage(name, stage.recv_endpoint)

    async def close(self) -> None:
        await self.coordinator.stop()
        for stage in self.stages.values():
            stage.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def submit(self, request_id: str, request: Any = "hi") -> asyncio.Task[Any]:
        task = asyncio.create_task(self.coordinator.submit(request_id, request))
        self._tasks.append(task)
        return task

    async def submitted(self) -> SubmitMessage:
        message = await soon(self.stages["first"].recv())
        assert isinstance(message, SubmitMessage)
        return message

    async def complete(self, stage: str, request_id: str, result: Any) -> None:
        await self.stages[stage].send_complete(CompleteMessage(request_id, stage, True, result=result))

    async def answer(self, request_id: str, result: Any, *, fails: bool) -> None:
        """The last stage's answer: the result, or that it failed, with the result in the text."""
        if fails:
            message = CompleteMessage(request_id, "text", False, error=f"failed {result}")
        else:
            message = CompleteMessage(request_id, "text", True, result=result)
        await self.stages["text"].send_complete(message)

    async def chunk(self, stage: str, request_id: str, text: str) -> None:
        await self.stages[stage].send_stream(StreamMessage(request_id, stage, {"text": text}))

    async def progress(self, stage: str, *changes: Any, spans: Any = ()) -> None:
        message = ProgressMessage(stage, [*changes], [*spans])
        await self.stages[stage].send_progress(message)

    async def settle(self) -> None:
        """Returns once the coordinator has handled all that the stages have sent so far."""
        for name, stage in self.stages.items():
            marker = self.submit_marker(name)
            await stage.send_complete(CompleteMessage(marker, name, False, error="marker"))
            await until(lambda marker=marker: marker not in self.coordinator._by_wire_id)

    def submit_marker(self, name: str) -> str:
        marker = f"marker-{name}-{len(self._tasks)}"
        tracked = self.coordinator._track(marker, None, None)
        self._tasks.append(asyncio.ensure_future(tracked.outcome))
        return marker


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, WAIT_S)


async def pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """A fixture: starts pipelines, and closes them after the test."""
    # No deadline of the coordinator's own comes between what a test sends and what it expects.
    monkeypatch.setattr(module, "_LATE_CHUNKS_S", 1000.0)
    monkeypatch.setattr(requests, "_SETTLE_S", 1000.0)
    made: list[Pipeline] = []

    async def start(**options: Any) -> Pipeline:
        pipeline = Pipeline(tmp_path, **options)
        made.append(pipeline)
        await pipeline.start()
        return pipeline

    yield start
    for pipeline in made:
        await pipeline.close()
