"""Keeps a GPU's tensors that a relay has lent, for as long as their readers need them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sglang_omni.relay.base import RelayError
from sglang_omni.relay.shm.cuda_ipc import CudaLender, span_of

if TYPE_CHECKING:
    import torch

# Loans that one edge may have. Each takes a ticket, of which an edge has some hundreds, and a reader that
# collects the chunks of a long stream would hold them all.
MAX_LOANS = 256


class LoanTicket(Protocol):
    """A put without data of its own, held by its reader for as long as that has use of it."""

    @property
    def is_returned(self) -> bool:
        """True if no reader can read it any more."""
        ...


class _Loan(NamedTuple):
    tensors: list[torch.Tensor]
    ticket: LoanTicket
    edge: str
    nbytes: int


class Loans:
    """The tensors that one relay has lent.

    Args:
        limit: Bytes that one edge may have on loan. What a slow reader keeps is memory of the GPU's;
            beyond this, or ``MAX_LOANS``, it gets copies, with which the relay never runs dry.
        wait_until: ``wait_until(done)`` asks ``done`` whenever a ticket may have changed and returns when
            it says so; raises RelayError if the relay is closed.
    """

    def __init__(self, limit: int, wait_until: Callable[[Callable[[], bool]], Awaitable[None]]) -> None:
        self._limit = limit
        self._wait_until = wait_until
        self._lender = CudaLender()
        self._loans: list[_Loan] = []
        self._lent: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._collecting: asyncio.Task[None] | None = None

    def fits(self, tensors: Sequence[torch.Tensor], edge: str) -> bool:
        """True if the edge may have these on loan as well."""
        return self._counts[edge] < MAX_LOANS and self._lent[edge] + _nbytes(tensors) <= self._limit

    def describe(self, tensors: Sequence[torch.Tensor]) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Describe tensors for their reader; see ``CudaLender.describe`` for the result and its errors."""
        return self._lender.describe(tensors)

    def keep(self, tensors: list[torch.Tensor], ticket: LoanTicket, edge: str) -> None:
        """Keep tensors until their ticket is back."""
        loan = _Loan(tensors, ticket, edge, _nbytes(tensors))
        self._loans.append(loan)
        self._lent[edge] += loan.nbytes
        self._counts[edge] += 1
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect_all())

    def lent(self) -> dict[str, int]:
        """Bytes on loan, per edge."""
        return {edge: nbytes for edge, nbytes in self._lent.items() if nbytes}

    async def _collect_all(self) -> None:
        try:
            await self._wait_until(self._collect)
        except RelayError:
            # The relay is closed and its process about to end: no reader needs them any more.
            self._loans.clear()

    def _collect(self) -> bool:
        """Let go of what came back; True if nothing is on loan any more."""
        out = []
        for loan in self._loans:
            if loan.ticket.is_returned:
                self._lent[loan.edge] -= loan.nbytes
                self._counts[loan.edge] -= 1
            else:
                out.append(loan)
        self._loans = out
        return not out


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(span_of(tensor.shape, tensor.stride()) * tensor.element_size() for tensor in tensors)
