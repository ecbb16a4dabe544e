"""The edge between stages of one process: hands over the object itself."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

from sglang_omni.pipeline.stage.edges.edge import (
    End,
    FailChunk,
    Item,
    OutgoingEdge,
    Payload,
    StreamChunk,
    send_each,
)
from sglang_omni.proto import Replicas, StagePayload


class LocalReceiver(Protocol):
    """A stage, as the other stages of its process see it."""

    name: str

    def receive(self, item: Item) -> Coroutine[Any, Any, None]:
        """Takes an item. Waits while the stage is full."""


class LocalStageDispatcher:
    """Passes items by reference to the stages registered here.

    Receivers treat payloads and chunks as read-only, unless the edge projects a payload of their own. The
    ``send_*`` methods are kept for the contract; a stage sends through ``LocalEdge``.
    """

    def __init__(self) -> None:
        self._stages: dict[str, LocalReceiver] = {}

    def register(self, stage: LocalReceiver) -> None:
        self._stages[stage.name] = stage

    def register_many(self, stages: Iterable[LocalReceiver]) -> None:
        for stage in stages:
            self.register(stage)

    def target(self, from_stage: str, to_stage: str) -> LocalReceiver:
        """The stage ``to_stage``. Raises RuntimeError if it is not registered."""
        try:
            return self._stages[to_stage]
        except KeyError:
            raise RuntimeError(
                f"stage {from_stage!r} cannot reach {to_stage!r} inside this process: it is not registered"
            ) from None

    async def send_payload(
        self,
        *,
        from_stage: str,
        to_stage: str,
        request_id: str,
        payload: StagePayload,
        replicas: Replicas = None,
    ) -> None:
        """Hands over a payload; ``replicas`` are those of the request's SubmitMessage."""
        item = Payload(request_id, from_stage, payload, replicas)
        await self.target(from_stage, to_stage).receive(item)

    async def send_stream_chunk(
        self,
        *,
        from_stage: str,
        to_stage: str,
        request_id: str,
        chunk_id: int,
        data: Any,
        metadata: dict[str, Any] | None = None,
        replicas: Replicas = None,
    ) -> None:
        """Hands over a chunk; ``replicas`` are those of the request's SubmitMessage."""
        item = StreamChunk(request_id, from_stage, chunk_id, data, metadata, replicas)
        await self.target(from_stage, to_stage).receive(item)

    async def send_stream_signal(
        self,
        *,
        from_stage: str,
        to_stage: str,
        request_id: str,
        is_done: bool = False,
        error: str | None = None,
        replicas: Replicas = None,
    ) -> None:
        """Says that a stream is over (``is_done``), or has failed with ``error``."""
        if is_done or error is not None:
            await self.target(from_stage, to_stage).receive(End(request_id, from_stage, error, replicas))


class LocalEdge:
    """Hands items over to a target of this process.

    Args:
        dispatcher: Knows the target.
        relayed: Copies the payloads that are not the target's own, see ``Payload.is_own``.
    """

    def __init__(
        self, source: str, target: str, dispatcher: LocalStageDispatcher, relayed: OutgoingEdge
    ) -> None:
        self._source = source
        self._target = target
        self._dispatcher = dispatcher
        self._relayed = relayed

    async def send(self, item: Item) -> None:
        """Raises RuntimeError if the target is not registered, and what the relayed edge raises."""
        if type(item) is Payload and not item.is_own:
            await self._relayed.send(item)
        else:
            await self._dispatcher.target(self._source, self._target).receive(item)

    async def send_chunks(self, chunks: Iterable[StreamChunk], fail: FailChunk) -> None:
        """One after the other."""
        await send_each(self, chunks, fail)
