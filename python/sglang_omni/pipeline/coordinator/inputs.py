"""What a caller adds to the input of a request that runs: its way to the stage that takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from sglang_omni.config.plan.instances import instance_name
from sglang_omni.pipeline.coordinator.instances import StageDirectory
from sglang_omni.pipeline.coordinator.requests import InFlightCounts, MoreInput, TrackedRequest
from sglang_omni.proto import MoreInputMessage, RequestError


class InputStreams:
    """Sends the chunks of requests' input to the stage that takes them, while the requests run.

    Args:
        stage: The stage's name; None if the pipeline has none.
        stages: Where it is reached.
        counts: Counts that the stage gets a stream.
        fail: Ends a request whose input has failed.
    """

    def __init__(
        self,
        stage: str | None,
        stages: StageDirectory,
        counts: InFlightCounts,
        fail: Callable[[TrackedRequest, Exception], None],
    ) -> None:
        self._stage = stage
        self._stages = stages
        self._counts = counts
        self._fail = fail

    def begin(self, tracked: TrackedRequest, chunks: MoreInput) -> None:
        """Sends a request's chunks from now on, until it has ended.

        Raises:
            RequestError: No stage takes them.
        """
        if self._stage is None:
            raise RequestError("this pipeline takes no input while a request runs", code="not_supported")
        target = instance_name(self._stage, (tracked.replicas or {}).get(self._stage))
        tracked.input = asyncio.create_task(self._send(tracked, target, chunks))

    async def _send(self, tracked: TrackedRequest, target: str, chunks: MoreInput) -> None:
        wire_id, replicas, count = tracked.wire_id, tracked.replicas, 0
        try:
            # It may die with the first chunk unread.
            self._counts.add(wire_id, target, 1)
            async with aclosing(chunks):
                async for chunk in chunks:
                    await self._stages.send(target, MoreInputMessage(wire_id, chunk, count, replicas))
                    count += 1
            await self._stages.send(target, MoreInputMessage(wire_id, replicas=replicas))
        except Exception as exc:  # noqa: BLE001  it is the request's failure
            self._fail(tracked, exc)
