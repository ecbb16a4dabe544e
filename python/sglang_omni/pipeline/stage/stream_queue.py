"""``StreamItem``, the unit of streams between stages. Contract: existing code imports from this path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class StreamItem:
    """One chunk of a stream, as a ``stream_chunk`` message hands it to the scheduler.

    Attributes:
        chunk_id: Position in the stream of ``from_stage`` for this request, from 0.
        data: What the sending stage's scheduler emitted.
        from_stage: The sending stage's name.
        metadata: What that scheduler added to the chunk.
    """

    chunk_id: int
    data: Any
    from_stage: str
    metadata: dict[str, Any] | None = None
