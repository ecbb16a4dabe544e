"""Items that one stage hands to another, and the protocol of the edges that carry them.

An edge leads from one instance of a stage to another, or to the coordinator. Four kinds carry items: local
(``local.py``), relayed (``relayed.py``), CUDA IPC (``cuda.py``) and coordinator (``coordinator.py``).

Of all items, ``source`` is the sending instance, and ``replicas`` says which replica of each replicated
stage serves the request. ``fan_out`` writes the data for all targets that get the same. ``nbytes``, set by
the reader, counts the bytes that came through a relay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from sglang_omni.proto import Replicas
from sglang_omni.relay.base import RelayOperation

# Metadata that a reader needs, and the put, which may be waited for after the metadata was sent.
Written = tuple[dict[str, Any], RelayOperation]


class SharedObject(Protocol):
    """What several targets get, written for each when its own edge gets to it."""

    async def write(self, key: str, target: str) -> Written:
        """Writes it under a key for one target."""
        ...


@dataclass(slots=True)
class Payload:
    """The work of one request.

    Attributes:
        source: None is the coordinator.
        data: A StagePayload; for the coordinator the bare result; None with ``fan_out``.
        is_own: No other stage can see what the target does to ``data``.
        exported: What the reader imports the payload's exported tensors with.
    """

    request_id: str
    source: str | None
    data: Any
    replicas: Replicas = None
    fan_out: SharedObject | None = None
    is_own: bool = False
    exported: dict[str, Any] | None = None
    nbytes: int = 0


@dataclass(slots=True)
class StreamChunk:
    """One chunk of a request's stream.

    Attributes:
        chunk_id: The position in the stream from ``source`` to this target, from 0.
        data: A tensor or any object.
        metadata: What the sending scheduler added to the chunk; may hold tensors.
        exported: What the reader imports the chunk's exported tensors with.
    """

    request_id: str
    source: str
    chunk_id: int
    data: Any
    metadata: dict[str, Any] | None = None
    replicas: Replicas = None
    fan_out: SharedObject | None = None
    exported: dict[str, Any] | None = None
    nbytes: int = 0


@dataclass(slots=True)
class End:
    """The end of a request's stream, or its failure with ``error``.

    ``error_info`` holds the fields of a RequestError, or of an ``Unavailable``.
    """

    request_id: str
    source: str
    error: str | None = None
    replicas: Replicas = None
    error_info: dict[str, Any] | None = None


Item = Payload | StreamChunk | End
# Called with a chunk that cannot be sent, and why.
FailChunk = Callable[[StreamChunk, Exception], None]


class OutgoingEdge(Protocol):
    """Carries items to one target."""

    async def send(self, item: Item) -> None:
        """Returns once the item has left. Waits while the target is full. Raises what made it fail."""

    async def send_chunks(self, chunks: Iterable[StreamChunk], fail: FailChunk) -> None:
        """Sends chunks of several requests, each drawn when those before it have left or do not wait."""


async def send_each(edge: OutgoingEdge, chunks: Iterable[StreamChunk], fail: FailChunk) -> None:
    """Sends chunks one after the other."""
    for chunk in chunks:
        try:
            await edge.send(chunk)
        except Exception as exc:  # noqa: BLE001  whatever a chunk holds, it is its own request's failure
            fail(chunk, exc)
