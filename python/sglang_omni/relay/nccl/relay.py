"""A relay over torch.distributed's point-to-point calls: NCCL between GPUs, gloo if one side has none.

A receiver asks, over a connection of its own, for payloads that were announced to it, and the sender sends
only those: an aborted payload is never sent, gets may come in any order, and two sides that send to each
other do not deadlock. Each connection has a process group of two ranks (see ``groups``), which carries
payloads in the order in which they were asked for.

A connection needs the token that is in every put's metadata. The groups themselves accept every connection,
and gloo ends the process if the other side of a group breaks gloo's own protocol: this is for networks
of one's own.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from sglang_omni.relay.base import (
    INLINE_BYTES,
    Relay,
    RelayError,
    RelayReadError,
    credit_bytes,
    register_relay,
)
from sglang_omni.relay.bind_guard import check_address
from sglang_omni.relay.buffers import bytes_of
from sglang_omni.relay.nccl.groups import host_memory
from sglang_omni.relay.nccl.links import Endpoint, Link, Offer, PairServer
from sglang_omni.relay.put_ledger import KEEP_SECONDS, Got, Put, PutLedger

if TYPE_CHECKING:
    from sglang_omni._core import PayloadPlan

_COPY_IN_THREAD = 8 << 20


@register_relay("nccl")
class NcclRelay(Relay):
    """A relay over process groups of two.

    Args:
        engine_id: The name of the stage or process, for error texts.
        slot_size_mb: With ``credits``, how much an edge may have under way, in MiB.
        credits: See ``slot_size_mb``.
        device: Where payloads are sent from and received, ``"cpu"`` or ``"cuda:N"``. NCCL is used if both
            sides have a GPU, each its own.
        host: The address to listen on, by which peers reach this host.
        allow_public: Start though ``host`` is a public address.
        timeout_s: How long to wait for credit, and for a read.
        keep_s: Seconds after which an unread payload is given up.

    Raises:
        ValueError: ``host`` is public and ``allow_public`` is not set.
    """

    inline_limit = INLINE_BYTES
    packs = True
    lends = True

    def __init__(
        self,
        engine_id: str = "relay",
        slot_size_mb: int = 512,
        credits: int = 2,
        device: str = "cpu",
        host: str = "127.0.0.1",
        allow_public: bool = False,
        timeout_s: float = 30.0,
        keep_s: float = KEEP_SECONDS,
    ) -> None:
        check_address("nccl", host, allow_public)
        self.engine_id = engine_id
        self.device = device
        self.name = f"the nccl relay of {engine_id!r}"
        self._ledger = PutLedger(self.name, credit_bytes(self.name, slot_size_mb, credits), timeout_s, keep_s)
        self._endpoint = Endpoint(self.name, host, device, timeout_s)
        self._server: PairServer | None = None
        self._links: dict[tuple[str, int, bytes], Link] = {}
        self._closed = False
        # Before the interpreter ends its threads are waited for, which must have been notified.
        atexit.register(self.close)

    # --- sending ---------------------------------------------------------------------------------

    async def put_async(
        self, tensor: torch.Tensor, request_id: str | None = None, dst_rank: int | None = None
    ) -> Put:
        """Send a copy of a tensor. See ``Relay.put_async``."""
        edge = "" if dst_rank is None else f"rank {dst_rank}"
        await self._ledger.take_credit(edge, tensor.nbytes, request_id or "")
        try:
            flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            packed = flat.clone() if flat.is_cuda else host_memory(flat.nbytes).copy_(flat)
            if flat.is_cuda:
                # Another thread sends it, on a stream of its own.
                await asyncio.to_thread(torch.cuda.current_stream(flat.device).synchronize)
        except BaseException:
            self._ledger.return_credit(edge, tensor.nbytes)
            raise
        return self._announce(packed, edge, request_id or "")

    async def put_payload(self, plan: PayloadPlan, request_id: str, edge: str | None = None) -> Put:
        """Pack a payload into memory of its own. See ``Relay.put_payload``."""
        await self._ledger.take_credit(edge or "", plan.nbytes, request_id)
        try:
            packed = host_memory(plan.nbytes)
            if plan.on_device or plan.nbytes > _COPY_IN_THREAD:
                # The thread has the tensor as well, in case the caller leaves.
                await asyncio.to_thread(plan.write_to, bytes_of(packed))
            else:
                plan.write_to(bytes_of(packed))
        except BaseException:
            self._ledger.return_credit(edge or "", plan.nbytes)
            raise
        return self._announce(packed, edge or "", request_id)

    def _announce(self, packed: torch.Tensor, edge: str, key: str) -> Put:
        if self._server is None:
            try:
                self._server = PairServer(self._endpoint, self._ledger)
            except OSError as error:
                self._ledger.return_credit(edge, packed.nbytes)
                raise RelayError(f"{self.name} cannot listen on {self._endpoint.host}: {error}") from error
        ticket = self._ledger.issue(packed, packed.nbytes, edge, packed.nbytes, key)
        metadata = {
            "engine": "nccl",
            "address": [self._endpoint.host, self._server.port],
            "token": self._server.token,
            "nbytes": ticket.nbytes,
            "ticket": ticket.number,
            # What a reader with a destination of its own has to allocate.
            "transfer_info": {"size": ticket.nbytes, "req_id": key},
        }
        return Put(self._ledger, ticket, metadata)

    # --- receiving -------------------------------------------------------------------------------

    async def get_async(
        self, metadata: Mapping[str, Any], dest_tensor: torch.Tensor, request_id: str | None = None
    ) -> Got:
        """Receive into a contiguous tensor. See ``Relay.get_async``."""
        if not dest_tensor.is_contiguous():
            raise ValueError(f"{self.name} receives into contiguous tensors")
        nbytes = _parse(metadata).nbytes
        if dest_tensor.nbytes < nbytes:
            raise ValueError(f"{nbytes} bytes do not fit a destination of {dest_tensor.nbytes}")
        received = await self._receive(metadata)
        # Not received in place: after a failure bytes may arrive late, and must not arrive there.
        dest_tensor.detach().reshape(-1).view(torch.uint8)[:nbytes].copy_(received)
        if received.is_cuda:
            # It was allocated on another thread's stream; it is kept until this stream's copy is done.
            received.record_stream(torch.cuda.current_stream(received.device))
        return Got(dict(metadata))

    async def get_payload(self, metadata: Mapping[str, Any]) -> Any:
        """The payload in memory of its own. See ``Relay.get_payload``."""
        return (await self._receive(metadata)).cpu().numpy()

    async def _receive(self, metadata: Mapping[str, Any]) -> torch.Tensor:
        offer = _parse(metadata)
        if self._closed:
            raise RelayError(f"{self.name} is closed")
        link = self._links.get(offer.sender)
        if link is None or link.is_closed:
            self._links = {sender: known for sender, known in self._links.items() if not known.is_closed}
            try:
                link = self._links[offer.sender] = Link(self._endpoint, offer.sender)
            except OSError as error:
                raise RelayReadError(f"{self.name} cannot read: {error}") from error
        return await asyncio.wrap_future(link.get(offer))

    # --- ends ------------------------------------------------------------------------------------

    def cleanup(self, request_id: str) -> None:
        """Take back what is under way for a request and not being sent."""
        self._ledger.revoke(request_id)

    def close(self) -> None:
        """Fail what is under way and tear the groups down."""
        atexit.unregister(self.close)
        self._closed = True
        self._ledger.close()
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.close()

    def stats(self) -> dict[str, dict[str, int]]:
        """Per edge: bytes under way, and how often a put had to wait."""
        return self._ledger.stats()

    def usage(self) -> dict[str, int]:
        """What this relay's payloads take now: numbers for ``/metrics``."""
        return self._ledger.usage()


def _parse(metadata: Mapping[str, Any]) -> Offer:
    match metadata:
        case {
            "engine": "nccl",
            "address": [str(host), int(port)],
            "token": bytes(token),
            "nbytes": int(nbytes),
            "ticket": int(ticket),
        } if 0 < port < 1 << 16 and len(token) == 16 and 0 <= nbytes < 1 << 63 and 0 <= ticket < 1 << 63:
            return Offer((host, port, token), ticket, nbytes)
        case _:
            raise RelayReadError(f"not the metadata of a nccl put: {sorted(map(str, metadata))}")
