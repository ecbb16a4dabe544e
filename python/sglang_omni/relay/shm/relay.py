"""Shared memory between processes of one host: one copy in, views out.

The sender copies a payload into an extent of its arena; the reader maps that arena once and views
the extent. When the last view is gone the room comes back by itself, in whatever thread that
happens. Each edge has credit for ``slot_size_mb * credits``, so a reader that holds on to what it
got stops only its own edge.

Views are read-only by contract. What several readers get lies in memory once, and each of them has it
mapped so that a page becomes its own when it writes there: a reader that breaks the contract spoils no
other's input. With ``SGLANG_OMNI_RELAY_READ_ONLY=1`` in its environment a receiving process crashes
(SIGSEGV) at the line that breaks that; ``python -X faulthandler`` then says where.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from sglang_omni._core import ArenaFull, LeaseError, ShmArena, ShmHeld, ShmLease
from sglang_omni.relay.base import (
    Relay,
    RelayError,
    RelayReadError,
    RelayTimeout,
    WaitingPut,
    credit_bytes,
    is_of,
    register_relay,
)
from sglang_omni.relay.buffers import bytes_of, in_thread
from sglang_omni.relay.put_ledger import Got
from sglang_omni.relay.shm.cuda_driver import CudaError, is_cuda_in_use
from sglang_omni.relay.shm.cuda_ipc import borrow
from sglang_omni.relay.shm.gpu_returns import when_gpu_is_done
from sglang_omni.relay.shm.loans import Loans
from sglang_omni.relay.shm.pinned import pinned_memory

if TYPE_CHECKING:
    import torch

    from sglang_omni._core import PayloadPlan, Place

    # Where a payload lies, and whether its reader may keep views of it.
    _Announced = tuple[Place, bool]

# What takes longer to copy than to hand to a thread is copied there, so that the loop goes on.
_COPY_IN_THREAD = 32 << 20
# With "1", Rust maps what other processes send so that this one cannot write to it.
_READ_ONLY = "SGLANG_OMNI_RELAY_READ_ONLY"
# How long a put waits for room, and how long an unread payload is kept.
_WAIT_SECONDS = 30.0
_KEEP_SECONDS = 300.0
# Waiting for room on one edge, look at what the others may have left so often.
_LOOK_AGAIN_SECONDS = 1.0
# What lies where a ticket alone matters.
_NOTHING = bytes(64)
# Senders that may be silent at the same time before others wait for them. Each is asked by one thread.
_ASKING_THREADS = 32


@register_relay("shm")
class ShmRelay(Relay):
    """A relay over anonymous shared memory.

    Args:
        engine_id: The name of the stage or process, for error texts.
        slot_size_mb: With ``credits``, how much an edge may have under way, in MiB.
        credits: See ``slot_size_mb``.
        device: Must be ``"cpu"``.
    """

    inline_limit = 16 << 10
    packs = True
    fans_out = True
    lends = True
    lends_tensors = True
    crosses_hosts = False
    cpu_only = True
    trusted = True

    def __init__(
        self, engine_id: str = "relay", slot_size_mb: int = 512, credits: int = 2, device: str = "cpu"
    ) -> None:
        if device != "cpu":
            raise ValueError(
                f"the shm relay of {engine_id!r} is for the CPU, not for {device!r}: set its device to "
                "'cpu', a GPU's tensors are copied all the same"
            )
        self.engine_id = engine_id
        self._limit = credit_bytes(f"the shm relay of {engine_id!r}", slot_size_mb, credits)
        self.loans = Loans(self._limit, self._wait_for_loans)
        self._arena: ShmArena | None = None
        self._closed = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._waiting: set[WaitingPut] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        # By a sender's name, there for as long as a read of it waits.
        self._asking: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        _relays.add(self)

    @property
    def arena(self) -> ShmArena:
        """The memory this relay writes into, made when it first writes."""
        if self._closed:
            raise RelayError(f"the shm relay of {self.engine_id!r} is closed")
        if self._arena is None:
            self._arena = ShmArena(self._limit)
        return self._arena

    # --- sending ---------------------------------------------------------------------------------

    async def put_async(
        self, tensor: torch.Tensor, request_id: str | None = None, dst_rank: int | None = None
    ) -> ShmPut:
        """Send a CPU tensor's bytes. See ``Relay.put_async``."""
        if tensor.device.type != "cpu":
            raise ValueError(f"the shm relay sends CPU tensors, not one on {tensor.device}")
        flat = bytes_of(tensor.resolve_conj().resolve_neg().contiguous())
        arena, key = self.arena, request_id or ""
        edge = "" if dst_rank is None else f"rank {dst_rank}"

        def put() -> _Announced:
            return arena.put_raw(edge, key, flat, _KEEP_SECONDS)

        return await self._put(put, flat.nbytes, edge, key, in_thread=flat.nbytes > _COPY_IN_THREAD)

    async def put_payload(self, plan: PayloadPlan, request_id: str, edge: str | None = None) -> ShmPut:
        """Pack a payload into the arena. See ``Relay.put_payload``."""
        arena, target = self.arena, edge or ""

        def put() -> _Announced:
            return arena.put(target, request_id, plan, _KEEP_SECONDS)

        return await self._put(put, plan.nbytes, target, request_id, in_thread=self._takes_long(plan))

    async def hold_payload(self, plan: PayloadPlan) -> ShmHeld | None:
        """Pack a payload into the arena for several targets. See ``Relay.hold_payload``."""
        arena = self.arena
        try:
            if self._takes_long(plan):
                return await in_thread(partial(arena.hold, plan))
            return arena.hold(plan)
        except ArenaFull:
            return None

    async def put_held(self, held: ShmHeld, nbytes: int, request_id: str, edge: str | None = None) -> ShmPut:
        """Announce what is held to one target. See ``Relay.put_held``."""
        arena, target = self.arena, edge or ""

        def put() -> _Announced:
            return arena.put_held(target, request_id, held, _KEEP_SECONDS)

        sent = await self._put(put, nbytes, target, request_id)
        sent.metadata["shared"] = True
        return sent

    def _takes_long(self, plan: PayloadPlan) -> bool:
        """True if writing it is for a thread, so that the loop goes on."""
        if plan.on_device:
            pinned_memory().add(self.arena.mapping)
            return True
        return plan.nbytes > _COPY_IN_THREAD

    async def _put(
        self, put: Callable[[], _Announced], nbytes: int, edge: str, key: str, *, in_thread: bool = False
    ) -> ShmPut:
        def attempt_now() -> _Announced | str:
            # A text: an error's traceback, in a circle with the thread's future, would keep the payload.
            try:
                return put()
            except ArenaFull as full:
                return str(full)

        async def attempt() -> _Announced | str:
            if not in_thread:
                return attempt_now()
            copying = asyncio.ensure_future(asyncio.to_thread(attempt_now))
            try:
                return await asyncio.shield(copying)
            except asyncio.CancelledError:
                # The thread goes on to its end; no message will announce what it puts.
                copying.add_done_callback(take_back)
                raise

        def take_back(copying: asyncio.Future[_Announced | str]) -> None:
            failed = copying.cancelled() or copying.exception() is not None
            if not failed and not isinstance(announced := copying.result(), str):
                arena.revoke_place(announced[0])

        arena = self.arena
        if isinstance(announced := await attempt(), str):
            announced = await self._wait_for_room(attempt, edge, key)
        place, lend = announced
        metadata = {
            "arena": arena.name,
            "place": list(place),
            "lend": lend,
            # What a reader with a destination of its own has to allocate.
            "transfer_info": {"size": nbytes, "req_id": key},
        }
        return ShmPut(self, place, metadata, key)

    async def _wait_for_room(
        self, attempt: Callable[[], Awaitable[_Announced | str]], edge: str, key: str
    ) -> _Announced:
        arena, time = self.arena, asyncio.get_running_loop().time
        deadline = time() + _WAIT_SECONDS
        waiting = WaitingPut(key)
        self._waiting.add(waiting)
        arena.wait_begin(edge)
        try:
            while True:
                changed = self._next_change()
                try:
                    waiting.check()
                    placed = await attempt()
                    if not isinstance(placed, str):
                        return placed
                    if time() >= deadline:
                        raise RelayTimeout(
                            f"{self.engine_id!r}: no room for {key!r} after {_WAIT_SECONDS:g} s: {placed}. "
                            "Its reader must let go of tensors it keeps, or the relay have more credits"
                        )
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(min(deadline, time() + _LOOK_AGAIN_SECONDS)):
                            await changed
                finally:
                    self._forget(changed)
        finally:
            arena.wait_end(edge)
            self._waiting.discard(waiting)

    # --- waiting for returns ---------------------------------------------------------------------

    def _next_change(self) -> asyncio.Future[None]:
        """Done when a reader next takes or returns something. The arena must know that one waits."""
        loop = asyncio.get_running_loop()
        if not self._waiters:
            self._loop = loop
            loop.add_reader(self.arena.event_fd, self._on_change)
        future = loop.create_future()
        self._waiters.add(future)
        return future

    def _forget(self, future: asyncio.Future[None]) -> None:
        self._waiters.discard(future)
        if not self._waiters:
            self._stop_listening()

    def _stop_listening(self) -> None:
        if self._loop is not None and self._arena is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._arena.event_fd)
        self._loop = None

    def _on_change(self) -> None:
        try:
            os.read(self.arena.event_fd, 8)
        except BlockingIOError:
            return
        self._wake()

    def _wake(self) -> None:
        for future in self._waiters:
            if not future.done():
                future.set_result(None)

    async def _wait(self, arena: ShmArena, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until ``done``, asked at every change; False after ``timeout`` seconds."""
        if done():
            return True
        deadline = asyncio.get_running_loop().time() + timeout
        arena.wait_begin()
        try:
            while True:
                changed = self._next_change()
                try:
                    if done():
                        return True
                    async with asyncio.timeout_at(deadline):
                        await changed
                except TimeoutError:
                    return False
                finally:
                    self._forget(changed)
        finally:
            arena.wait_end()

    # --- receiving -------------------------------------------------------------------------------

    async def get_async(
        self, metadata: Mapping[str, Any], dest_tensor: torch.Tensor, request_id: str | None = None
    ) -> Got:
        """Copy into a contiguous CPU tensor. See ``Relay.get_async``."""
        lease = await self._lease(metadata)
        if not dest_tensor.is_contiguous() or dest_tensor.device.type != "cpu":
            raise ValueError("the shm relay receives into contiguous CPU tensors")
        if dest_tensor.nbytes < lease.nbytes:
            raise ValueError(f"{lease.nbytes} bytes do not fit a destination of {dest_tensor.nbytes}")
        await _copy_out(lease, bytes_of(dest_tensor))
        return Got(dict(metadata))

    async def get_payload(self, metadata: Mapping[str, Any]) -> Any:
        """A view of the sender's memory, or a copy if its room is short. See ``Relay.get_payload``."""
        lease = await self._lease(metadata)
        if metadata.get("lend") is True:
            if is_cuda_in_use():
                await _prepare_for_gpu(lease)
            return lease
        # numpy leaves memory as it comes; a bytearray would be zeroed first.
        import numpy as np

        copy = np.empty(lease.nbytes, np.uint8)
        await _copy_out(lease, copy)
        return copy

    async def _lease(self, metadata: Mapping[str, Any]) -> ShmLease:
        """The right to a payload. Waits only for the payload's own sender, if that must be asked."""
        match metadata:
            case {"arena": str(name), "place": [int(), int(), int(), int(), int()] as row}:
                # A copy is its reader's alone anyway.
                place, shared = tuple(row), (metadata.get("shared"), metadata.get("lend")) == (True, True)
            case _:
                raise RelayReadError(f"not the metadata of a shm put: {sorted(map(str, metadata))}")
        try:
            lease = ShmLease.try_open(name, place, shared=shared)
            if lease is not None:
                return lease
            # One of a sender's reads waits in a thread; one that is silent leaves the others theirs.
            async with self._asking.setdefault(name, asyncio.Lock()):
                lease = ShmLease.try_open(name, place, shared=shared)
                if lease is not None:
                    return lease
                opening = partial(ShmLease, name, place, shared=shared)
                return await in_thread(opening, _asking_threads())
        except (LeaseError, OverflowError) as error:
            raise RelayReadError(str(error)) from error

    # --- a GPU's memory --------------------------------------------------------------------------

    async def lend_tensors(
        self, tensors: Sequence[torch.Tensor], request_id: str, edge: str | None = None
    ) -> dict[str, Any] | None:
        """Lend them for as long as the reader holds a ticket of the arena. See ``Relay.lend_tensors``."""
        arena, target = self.arena, edge or ""
        if not self.loans.fits(tensors, target):
            return None
        described, kept = self.loans.describe(tensors)

        def put() -> _Announced:
            return arena.put_raw(target, request_id, _NOTHING, _KEEP_SECONDS)

        ticket = await self._put(put, len(_NOTHING), target, request_id)
        self.loans.keep(kept, ticket, target)
        return {"ticket": ticket.metadata, "described": described}

    async def _wait_for_loans(self, done: Callable[[], bool]) -> None:
        arena = self.arena
        while not await self._wait(arena, done, _KEEP_SECONDS):
            # Payloads that were not read in time expire only when something asks for them.
            arena.outstanding()

    async def borrow_tensors(self, loan: Any) -> list[torch.Tensor]:
        """The lender's tensors; its ticket is back when the last is gone. See ``Relay.borrow_tensors``."""
        match loan:
            case {"ticket": dict(ticket), "described": described}:
                pass
            case _:
                raise ValueError(f"not a loan of tensors: {loan!r:.200}")
        try:
            return borrow(described, await self._lease(ticket))
        except CudaError as error:
            raise RelayReadError(str(error)) from error

    # --- ends ------------------------------------------------------------------------------------

    def cleanup(self, request_id: str) -> None:
        """Take back what is under way for a request and not read yet. See ``Relay.cleanup``."""
        for waiting in self._waiting:
            waiting.is_revoked |= is_of(waiting.key, request_id)
        if self._waiting:
            self._wake()
        if self._arena is not None:
            self._arena.revoke(request_id)

    def close(self) -> None:
        """Stop serving the arena. Views of it stay valid as long as they exist."""
        self._closed = True
        for future in self._waiters:
            if not future.done():
                future.set_exception(RelayError(f"the shm relay of {self.engine_id!r} was closed"))
        self._stop_listening()
        if self._arena is not None:
            pinned_memory().remove(self._arena.mapping)
        self._arena = None

    def _begin_anew(self) -> None:
        """In a forked child: the arena, and the tasks that wait for it, are the parent's."""
        _of_parents.append(self._arena)
        self._arena, self._waiters, self._waiting, self._loop = None, set(), set(), None
        self._asking = weakref.WeakValueDictionary()
        self.loans = Loans(self._limit, self._wait_for_loans)

    def stats(self) -> dict[str, dict[str, int]]:
        """Per edge: bytes under way, and how often a put had to wait."""
        if self._arena is None:
            return {}
        return {edge: {"held": held, "waited": waited} for edge, held, waited in self._arena.edges()}

    def usage(self) -> dict[str, int]:
        """What this relay's payloads take now: numbers for ``/metrics``."""
        if self._arena is None:
            return {}
        edges = self._arena.edges()
        return {
            "relay_held_bytes": sum(held for _, held, _ in edges),
            "relay_held_slots": self._arena.outstanding(),
            "relay_written_bytes_total": self._arena.written(),
            "relay_waits_total": sum(waited for _, _, waited in edges),
        }


_relays: weakref.WeakSet[ShmRelay] = weakref.WeakSet()
# Kept: to take an arena apart could need a lock that a thread of the parent had when it forked.
_of_parents: list[ShmArena | None] = []


def _begin_anew() -> None:
    _asking_threads.cache_clear()
    for relay in _relays:
        relay._begin_anew()


os.register_at_fork(after_in_child=_begin_anew)


class ShmPut:
    """A payload under way; complete once its reader has it."""

    def __init__(self, relay: ShmRelay, place: Place, metadata: dict[str, Any], key: str) -> None:
        self._relay = relay
        self._arena = relay.arena
        self._place = place
        self._key = key
        self.metadata = metadata

    @property
    def is_complete(self) -> bool:
        """True if the reader has taken it, or it was taken back."""
        return self._arena.state(self._place) != "ready"

    @property
    def is_returned(self) -> bool:
        """True if no reader can read it any more."""
        return self._arena.state(self._place) not in ("ready", "held")

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        """Return when the reader has the payload or a cleanup took it back.

        Raises:
            RelayTimeout: It was not read within ``timeout`` seconds.
        """
        if not await self._relay._wait(self._arena, lambda: self.is_complete, timeout):
            raise RelayTimeout(f"{self._key!r} was not read within {timeout:g} s")


async def _prepare_for_gpu(lease: ShmLease) -> None:
    """Make ready for copies to a GPU: a process that uses one copies what it receives there."""
    import torch

    device = torch.cuda.current_device()
    # From locked memory a copy with ``non_blocking=True`` goes on after its source was let go of.
    lease.bequeath(lambda left: when_gpu_is_done(device, partial(_drop, left)))
    memory, address, nbytes = pinned_memory(), lease.address, lease.nbytes
    if memory.is_pinned(address, nbytes) or (arena := lease.arena) is None:
        return
    memory.add(arena, read_only=os.environ.get(_READ_ONLY) == "1")
    await asyncio.to_thread(memory.pin, address, nbytes, device=device)


def _drop(lease: ShmLease) -> None:
    """Give back a lease: it goes with the call."""


async def _copy_out(lease: ShmLease, target: Any) -> None:
    """Copy to a buffer, which stays until that is over, also when the caller is cancelled meanwhile."""
    if lease.nbytes > _COPY_IN_THREAD:
        await asyncio.to_thread(lease.copy_to, target)
    else:
        lease.copy_to(target)


@cache
def _asking_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_ASKING_THREADS, "relay-asking")
