"""What streams between stages are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class StreamItem:
    """One chunk of a stream, as a ``stream_chunk`` message hands it to the scheduler.

    Attributes:
        chunk_id: Position in the stream of ``from_stage`` for this request, from 0.
        data: What the sending stage's scheduler emitted.
        from_stage: The sending stage.
        metadata: What it added to the chunk.
    """

    chunk_id: int
    data: Any
    from_stage: str
    metadata: dict[str, Any] | None = None
