"""The interface of a transfer engine: a library that reads a peer's registered memory (NIXL, Mooncake)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from sglang_omni.relay.one_sided.slots import Segment, Slots


class Source(NamedTuple):
    """Where a payload lies in a peer's memory, as the peer announced it.

    Attributes:
        peer: How the engine reaches the peer.
        segment: Address, bytes of a slot and number of slots of the memory it lies in.
        slots: The first slot it takes, and how many.
        nbytes: Its size.
        generation: The generation that the slots' header must have.
        checksum: Of header and payload; None if the header must be read once more instead.
        ticket: The number by which the peer learns that the payload has been read.
    """

    peer: Mapping[str, Any]
    segment: tuple[int, int, int]
    slots: tuple[int, int]
    nbytes: int
    generation: int
    checksum: int | None
    ticket: int

    @property
    def start(self) -> int:
        """Address of the payload's header."""
        return self.segment[0] + self.slots[0] * self.segment[1]


class Transfer(Protocol):
    """A read that an engine has begun."""

    def is_done(self) -> bool:
        """True if the read is over.

        Raises:
            RelayReadError: The read failed.
        """
        ...


class TransferEngine(Protocol):
    """Reads a peer's memory, and lets peers read memory that is registered with it.

    ``register``, ``unregister`` and ``address`` are called from any thread, the others
    by one thread at a time.

    Attributes:
        has_threads: The engine's own threads continue transfers and serve peers between calls.
    """

    @property
    def has_threads(self) -> bool: ...

    def register(self, segment: Segment) -> None:
        """Let the engine, and peers through it, use a segment's memory."""
        ...

    def unregister(self, segment: Segment) -> None:
        """Undo ``register``; the memory may be unmapped afterwards."""
        ...

    def address(self) -> dict[str, Any]:
        """How a peer reaches this engine and the memory registered so far; packs with ``proto.codec``.

        Raises:
            RelayError: No peer can.
        """
        ...

    def read(self, source: Source, into: Slots, *, header_only: bool, notify: bytes) -> Transfer:
        """Begin to read.

        Args:
            source: The payload in the peer's memory.
            into: As many slots of this process.
            header_only: Read the payload's header alone.
            notify: Message for the peer when the read is done; empty for none.

        Raises:
            RelayReadError: The peer cannot be reached, or refuses the read.
        """
        ...

    def knows(self, source: Source) -> bool:
        """True if the peer is connected, so that beginning a read takes no longer than its copy."""
        ...

    def notifications(self) -> list[bytes]:
        """Messages from peers since the last call. An engine without threads serves its peers in it."""
        ...

    def close(self) -> None:
        """End every transfer; nothing is written to this process's memory afterwards."""
        ...
