"""Asks a running pipeline: one after the other, at once, in pieces, or beside requests that are aborted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import numpy as np

from sglang_omni.config import PipelineConfig
from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest, RequestError, StreamMessage
from sglang_omni.testing.answers import Answer, Case

# What stages count is reported to the coordinator within a twentieth of a second, if the machine is not busy.
_REPORTED_S = 2.0


class Reply(NamedTuple):
    """
    Attributes:
        result: The pipeline's; None if the request failed.
        pieces: What its chunks make if they are joined; None if there were none.
        failure: Why the request failed.
    """

    result: Any
    pieces: Answer | None = None
    failure: str = ""


class Asker:
    """
    Args:
        coordinator: Of a pipeline that runs.
        timeout_s: Seconds after which a request counts as failed.
    """

    def __init__(self, coordinator: Coordinator, timeout_s: float) -> None:
        self._coordinator = coordinator
        self._timeout_s = timeout_s
        self._numbers = itertools.count()

    async def alone(self, cases: Sequence[Case]) -> list[Reply]:
        return [await self._ask(case.request()) for case in cases]

    async def at_once(self, cases: Sequence[Case]) -> list[Reply]:
        return await asyncio.gather(*(self._ask(case.request()) for case in cases))

    async def streamed(self, cases: Sequence[Case]) -> list[Reply]:
        return [await self._ask(case.request(stream=True), stream=True) for case in cases]

    async def beside_aborted(self, cases: Sequence[Case]) -> tuple[list[Reply], int]:
        """The replies, and how many neighbours were aborted while they ran.

        Every other neighbour is aborted as it begins, the rest once the first of the cases is answered.
        """
        asked = [asyncio.create_task(self._ask(case.request())) for case in cases]
        ids = [f"neighbour-{next(self._numbers)}" for _ in cases]
        neighbours = [
            asyncio.create_task(self._coordinator.submit(request_id, case.request()))
            for request_id, case in zip(ids, cases, strict=True)
        ]
        # Now each task has sent its request in.
        await asyncio.sleep(0)
        aborted = [await self._coordinator.abort(request_id) for request_id in ids[::2]]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        aborted += [await self._coordinator.abort(request_id) for request_id in ids[1::2]]
        replies = await asyncio.gather(*asked)
        await asyncio.gather(*neighbours, return_exceptions=True)
        return replies, sum(aborted)

    async def counted(self, name: str, *, above: float = 0) -> float:
        """The sum of what all stages count under a name; waits a while for it to be more than ``above``."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _REPORTED_S
        while True:
            total = sum(stats.get(name, 0) for stats in self._coordinator.stage_stats().values())
            if total > above or loop.time() > end:
                return total
            await asyncio.sleep(0.02)

    async def _ask(self, request: OmniRequest, *, stream: bool = False) -> Reply:
        request_id = f"case-{next(self._numbers)}"
        try:
            async with asyncio.timeout(self._timeout_s):
                if not stream:
                    return Reply(await self._coordinator.submit(request_id, request))
                chunks: list[Mapping[str, Any]] = []
                result = None
                async for message in self._coordinator.stream(request_id, request):
                    if isinstance(message, StreamMessage):
                        chunks.append(message.chunk)
                    else:
                        result = message.result
                return Reply(result, joined(chunks))
        except TimeoutError:
            return Reply(None, failure=f"no answer within {self._timeout_s:g} s")
        except (RequestError, RuntimeError, ValueError) as exc:
            return Reply(None, failure=f"{type(exc).__name__}: {exc}")


def joined(chunks: Sequence[Mapping[str, Any]]) -> Answer | None:
    """What chunks make together; None if there are none."""
    if not chunks:
        return None
    texts, tokens, sounds = (
        [chunk[name] for chunk in chunks if chunk.get(name) is not None]
        for name in ("text", "token_ids", "audio_data")
    )
    return Answer(
        tokens=list(itertools.chain(*tokens)) if tokens else None,
        samples=np.concatenate([np.asarray(each, np.float32).reshape(-1) for each in sounds])
        if sounds
        else None,
        text="".join(texts) if texts else None,
    )


@asynccontextmanager
async def running(config: PipelineConfig, timeout_s: float, *, processes: bool) -> AsyncIterator[Asker]:
    """Runs a pipeline in this process, or in processes of its own."""
    if processes:
        async with MultiProcessPipelineRunner(config) as runner:
            yield Asker(runner.coordinator, timeout_s)
        return
    coordinator, stages = compile_pipeline(config)
    async with PipelineRunner(coordinator, stages):
        yield Asker(coordinator, timeout_s)
