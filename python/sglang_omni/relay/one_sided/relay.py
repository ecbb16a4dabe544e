"""A relay over a transfer engine that reads a peer's memory: the common part of nixl and mooncake.

The sender packs a payload into slots of registered memory and announces where they are. The receiver
reads them into slots of its own, hands out views of those, and notifies the sender of
the engine. How it knows that what it has got is the payload and nothing else:

- A payload of up to ``CHECKED_BYTES`` is announced with a checksum of header and payload, and takes one
  transfer. It does not matter in which order the bytes were read, how often, or what was written meanwhile:
  if they are those that were announced they are the payload, and if not the checksum differs.
- Of a larger one the receiver reads the header once more, in a transfer that begins when the payload's has
  ended: the header it was promised says that nothing else was written until then (see ``slots``). That
  takes the sender's thread twice if the transport needs it, and less time than two checksums.

A small read from a known peer begins in the call that asks for it, and ends there too if the transport copies
at once. Besides, a thread for each relay drives the engine, only while a read is under way or a payload waits
for its reader; otherwise it sleeps. A read that takes too long fails, and its destination is used for nothing
else until the engine says that the transfer is over: bytes may still arrive after the error.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from sglang_omni.relay.base import INLINE_BYTES, Relay, RelayError, RelayReadError, credit_bytes
from sglang_omni.relay.buffers import bytes_of
from sglang_omni.relay.one_sided.engine import Source, TransferEngine
from sglang_omni.relay.one_sided.pump import Pump
from sglang_omni.relay.one_sided.slot_pool import SlotPool
from sglang_omni.relay.one_sided.slots import CHECKED_BYTES, SLOT_BYTES, Slots, slots_for
from sglang_omni.relay.put_ledger import Got, Put, PutLedger

if TYPE_CHECKING:
    import torch

    from sglang_omni._core import PayloadPlan

# What takes longer to copy than to hand to a thread is copied there, so that the loop goes on.
_COPY_IN_THREAD = 8 << 20


class OneSidedRelay(Relay):
    """Sends payloads from registered memory, and reads those of peers; see the module for the protocol.

    Args:
        kind: The backend's name.
        engine_id: The name of the stage or process, for error texts.
        slot_size_mb: With ``credits``, how much an edge may have under way and the size of the registered
            pools for sending and for receiving, in MiB. A payload for which there is no room in a pool gets
            registered memory of its own.
        credits: See ``slot_size_mb``.
        timeout_s: How long to wait for credit, and for a read.
        keep_s: Seconds after which an unread payload is given up.
    """

    inline_limit = INLINE_BYTES
    packs = True
    fans_out = True
    lends = True

    def __init__(
        self, kind: str, engine_id: str, slot_size_mb: int, credits: int, timeout_s: float, keep_s: float
    ) -> None:
        self.kind = kind
        self.engine_id = engine_id
        self.name = f"the {kind} relay of {engine_id!r}"
        limit = credit_bytes(self.name, slot_size_mb, credits)
        self._timeout = timeout_s
        self._engine = self._make_engine()
        self._ledger = PutLedger(self.name, limit, timeout_s, keep_s, self._give_up)
        self._pump = Pump(self.name, self._engine, self._ledger)
        self._out = SlotPool(limit, self._engine, self._pump.nudge)
        self._in = SlotPool(limit, self._engine, self._pump.nudge)
        self._pump.pools = (self._out, self._in)

    @abstractmethod
    def _make_engine(self) -> TransferEngine:
        """The engine, ready to read and be read."""

    # --- sending ---------------------------------------------------------------------------------

    async def put_async(
        self, tensor: torch.Tensor, request_id: str | None = None, dst_rank: int | None = None
    ) -> Put:
        """Send a tensor's bytes. See ``Relay.put_async``."""
        import torch

        flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
        flat = flat.reshape(-1).view(torch.uint8)

        def write(target: memoryview) -> None:
            target[:] = memoryview(bytes_of(flat.cpu()))

        edge = "" if dst_rank is None else f"rank {dst_rank}"
        in_thread = flat.nbytes > _COPY_IN_THREAD or not flat.is_cpu
        return await self._put(write, flat.nbytes, edge, request_id or "", in_thread=in_thread)

    async def put_payload(self, plan: PayloadPlan, request_id: str, edge: str | None = None) -> Put:
        """Pack a payload into registered memory. See ``Relay.put_payload``."""
        in_thread = plan.on_device or plan.nbytes > _COPY_IN_THREAD
        return await self._put(plan.write_to, plan.nbytes, edge or "", request_id, in_thread=in_thread)

    async def hold_payload(self, plan: PayloadPlan) -> Slots | None:
        """Pack a payload for several targets. See ``Relay.hold_payload``."""
        self._check_open()
        slots = self._out.take_pooled(plan.nbytes)
        if slots is not None:
            in_thread = plan.on_device or plan.nbytes > _COPY_IN_THREAD
            await _write(plan.write_to, slots, plan.nbytes, in_thread)
        return slots

    async def put_held(self, held: Slots, nbytes: int, request_id: str, edge: str | None = None) -> Put:
        """Announce what is held to one target. See ``Relay.put_held``."""
        await self._ledger.take_credit(edge or "", held.nbytes, request_id)
        return self._announce(held, nbytes, edge or "", held.nbytes, request_id)

    async def _put(
        self, write: Callable[[memoryview], None], nbytes: int, edge: str, key: str, *, in_thread: bool
    ) -> Put:
        self._check_open()
        amount = slots_for(nbytes) * SLOT_BYTES
        await self._ledger.take_credit(edge, amount, key)
        try:
            slots = self._out.take(nbytes)
            await _write(write, slots, nbytes, in_thread)
        except BaseException:
            self._ledger.return_credit(edge, amount)
            raise
        return self._announce(slots, nbytes, edge, amount, key)

    def _announce(self, slots: Slots, nbytes: int, edge: str, amount: int, key: str) -> Put:
        try:
            peer = self._engine.address()
        except RelayError:
            self._ledger.return_credit(edge, amount)
            raise
        ticket = self._ledger.issue(slots, nbytes, edge, amount, key)
        segment = slots.segment
        metadata = {
            "engine": self.kind,
            "peer": peer,
            "segment": [segment.address, segment.slot_bytes, segment.slots],
            "slots": [slots.first, slots.count],
            "nbytes": nbytes,
            "generation": slots.generation,
            "checksum": slots.checksum,
            "ticket": ticket.number,
            # What a reader with a destination of its own has to allocate.
            "transfer_info": {"size": nbytes, "req_id": key},
        }
        self._pump.wake()
        return Put(self._ledger, ticket, metadata)

    # --- receiving -------------------------------------------------------------------------------

    async def get_async(
        self, metadata: Mapping[str, Any], dest_tensor: torch.Tensor, request_id: str | None = None
    ) -> Got:
        """Receive into a contiguous tensor. See ``Relay.get_async``."""
        import torch

        source = self._parse(metadata)
        if not dest_tensor.is_contiguous():
            raise ValueError(f"{self.name} receives into contiguous tensors")
        if dest_tensor.nbytes < source.nbytes:
            raise ValueError(f"{source.nbytes} bytes do not fit a destination of {dest_tensor.nbytes}")
        slots = await self._read(source)
        if source.nbytes:
            view = torch.frombuffer(slots.buffer(source.nbytes), dtype=torch.uint8)
            flat = dest_tensor.detach().reshape(-1).view(torch.uint8)[: source.nbytes]
            if source.nbytes > _COPY_IN_THREAD or not flat.is_cpu:
                await asyncio.to_thread(flat.copy_, view)
            else:
                flat.copy_(view)
        return Got(dict(metadata))

    async def get_payload(self, metadata: Mapping[str, Any]) -> Any:
        """A view of this relay's memory, into which the payload was read. See ``Relay.get_payload``."""
        source = self._parse(metadata)
        slots = await self._read(source)
        return slots.buffer(source.nbytes)

    async def _read(self, source: Source) -> Slots:
        self._check_open()
        try:
            slots = self._in.take(source.nbytes)
        except MemoryError as error:
            raise RelayReadError(f"{self.name}: {error}") from error
        # If this is cancelled, the pump still ends the read, and drops the slots after that.
        sender = " ".join(part for part in source.peer.values() if isinstance(part, str))
        read = self._pump.run(self._steps(source, slots), self._timeout, sender)
        try:
            if read.done():
                read.result()
            else:
                await asyncio.wrap_future(read)
        finally:
            # The traceback of its error has this frame: with it, the slots would live on in a cycle.
            del read
        return slots

    def _steps(self, source: Source, slots: Slots) -> Generator[None, None, None]:
        """The read of a payload. What runs it holds the destination until it is over."""
        # The first step is taken in the event loop, which is not to wait for a large copy or a connection.
        if source.nbytes > CHECKED_BYTES or not self._engine.knows(source):
            yield
        taken = b"%d" % source.ticket
        is_checked = source.checksum is not None
        transfer = self._engine.read(source, slots, header_only=False, notify=taken if is_checked else b"")
        while not transfer.is_done():
            yield
        if not is_checked:
            slots.wipe()
            transfer = self._engine.read(source, slots, header_only=True, notify=taken)
            while not transfer.is_done():
                yield
        if not slots.holds(source.generation, source.nbytes, source.checksum):
            raise RelayReadError(
                f"{self.name}: the payload of {source.nbytes} bytes that was announced is not there (any "
                "more): its sender has taken it back, given it up or announced something else"
            )

    def _parse(self, metadata: Mapping[str, Any]) -> Source:
        match metadata:
            case {
                "engine": self.kind,
                "peer": dict(peer),
                "segment": [int(address), int(slot_bytes), int(slots)],
                "slots": [int(first), int(count)],
                "nbytes": int(nbytes),
                "generation": int(generation),
                "checksum": int() | None as checksum,
                "ticket": int(ticket),
            }:
                pass
            case _:
                raise RelayReadError(f"not the metadata of a {self.kind} put: {sorted(map(str, metadata))}")
        numbers = (address, slots, first, count, nbytes, generation, ticket)
        if min(numbers) < 0 or max(*numbers, address + slots * SLOT_BYTES) >= 1 << 63:
            raise RelayReadError(f"not the metadata of a {self.kind} put: a number is out of range")
        if checksum is not None and not 0 <= checksum < 1 << 64:
            raise RelayReadError(f"not the metadata of a {self.kind} put: its checksum is out of range")
        if slot_bytes != SLOT_BYTES or count != slots_for(nbytes) or first + count > slots:
            raise RelayReadError(
                f"not the metadata of a {self.kind} put: {nbytes} bytes do not lie in slots {first} to "
                f"{first + count} of {slots} of {slot_bytes} bytes"
            )
        return Source(
            peer, (address, slot_bytes, slots), (first, count), nbytes, generation, checksum, ticket
        )

    # --- ends ------------------------------------------------------------------------------------

    def cleanup(self, request_id: str) -> None:
        """Take back what is under way for a request. A reader in the middle of it gets an error."""
        self._ledger.revoke(request_id)

    def _give_up(self, slots: Slots) -> None:
        # A late reader must still be served, to learn that the payload is gone: unmapped memory would take
        # its connection down.
        if slots.own:
            slots.wipe()
        self._pump.keep(slots if slots.own else None, self._timeout)

    def close(self) -> None:
        """End all transfers and stop the engine. Views of what was received stay valid."""
        self._ledger.close()
        self._pump.close()

    def _check_open(self) -> None:
        if self._pump.is_closed:
            raise RelayError(f"{self.name} is closed")

    def stats(self) -> dict[str, dict[str, int]]:
        """Per edge: bytes under way, and how often a put had to wait."""
        return self._ledger.stats()

    def usage(self) -> dict[str, int]:
        """What this relay's payloads take now: numbers for ``/metrics``."""
        return self._ledger.usage() | {"relay_quarantined_reads": self._pump.quarantined}


async def _write(write: Callable[[memoryview], None], slots: Slots, nbytes: int, in_thread: bool) -> None:
    def fill() -> None:
        write(slots.payload(nbytes))
        slots.seal(nbytes)

    if in_thread:
        # The thread goes on to its end, and holds the slots until then, also if the caller has left.
        await asyncio.to_thread(fill)
    else:
        fill()
