"""The edge to the coordinator: results, failures, chunks for the caller, and what the stage reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglang_omni.compat.control_plane import StageLink
from sglang_omni.config.plan.instances import stage_of
from sglang_omni.pipeline.stage.edges.edge import FailChunk, Item, Payload, StreamChunk, send_each
from sglang_omni.pipeline.stage.edges.queue import EdgeQueue
from sglang_omni.proto import (
    CompleteMessage,
    ProgressMessage,
    StatsMessage,
    StreamBatchMessage,
    StreamMessage,
)

COORDINATOR = "coordinator"


class CoordinatorEdge:
    """Sends to the coordinator, in the order of ``queue``.

    Args:
        instance: The sending instance.
        link: The stage's control plane.
    """

    def __init__(self, instance: str, link: StageLink) -> None:
        self._instance = instance
        self._stage_name = stage_of(instance)
        self._link = link
        self.queue = EdgeQueue(f"{instance}->{COORDINATOR}")

    async def send(self, item: Item) -> None:
        """A payload completes the request, an end fails it, a chunk goes to the caller.

        Raises TypeError or ValueError if the item cannot be encoded.
        """
        if isinstance(item, StreamChunk):
            await self._link.send_stream(self._stream_message(item))
        elif isinstance(item, Payload):
            done = CompleteMessage(item.request_id, self._instance, True, result=item.data)
            await self._link.send_complete(done)
        else:
            failed = CompleteMessage(
                item.request_id, self._instance, False, error=item.error, error_info=item.error_info
            )
            await self._link.send_complete(failed)

    async def send_chunks(self, chunks: Iterable[StreamChunk], fail: FailChunk) -> None:
        """Sends chunks of several requests as one message, or alone if one of them cannot be encoded."""
        chunks = list(chunks)
        try:
            if len(chunks) > 1:
                sent: list[tuple[str, Any, str | None, int | None]] = [
                    (item.request_id, item.data, _modality(item), item.chunk_id) for item in chunks
                ]
                await self._link.send_stream_batch(StreamBatchMessage(self._stage_name, sent))
            elif chunks:
                await self.send(chunks[0])
        except (TypeError, ValueError) as exc:
            if len(chunks) > 1:
                await send_each(self, chunks, fail)
            else:
                fail(chunks[0], exc)

    def report(self, message: ProgressMessage | StatsMessage) -> None:
        """Sends a report behind everything that is queued."""
        send: Any = self._link.send_stats if isinstance(message, StatsMessage) else self._link.send_progress
        self.queue.put("", send, message)

    def _stream_message(self, item: StreamChunk) -> StreamMessage:
        return StreamMessage(
            item.request_id,
            self._stage_name,
            item.data,
            stage_name=self._stage_name,
            modality=_modality(item),
            chunk_id=item.chunk_id,
        )


def _modality(item: StreamChunk) -> str | None:
    modality = item.metadata.get("modality") if item.metadata else None
    if modality is None and isinstance(item.data, dict):
        modality = item.data.get("modality")
    return modality if isinstance(modality, str) else None
