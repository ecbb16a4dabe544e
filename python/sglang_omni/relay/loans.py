"""A GPU's tensors lent to readers of a relay: who has how much, and until when it must be kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sglang_omni.relay.base import RelayError
from sglang_omni.relay.cuda_ipc import CudaLender, span_of

if TYPE_CHECKING:
    import torch


class Ticket(Protocol):
    """A put without data of its own, held by its reader for as long as that has use of it."""

    def wait_for_return(self) -> Awaitable[None]:
        """Return once nobody can read it any more, or raise RelayError where the relay is closed."""
        ...


class Loans:
    """The tensors that one relay has lent.

    Args:
        limit: Bytes that one edge may have on loan. What a slow reader keeps is memory of the GPU's;
            beyond this it gets copies, for whose number the relay has its own limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lender = CudaLender()
        self._lent: Counter[str] = Counter()
        self._keeping: set[asyncio.Task[None]] = set()

    def fits(self, tensors: Sequence[torch.Tensor], edge: str) -> bool:
        """Whether the edge may have these on loan as well."""
        return self._lent[edge] + _nbytes(tensors) <= self._limit

    def describe(self, tensors: Sequence[torch.Tensor]) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """As ``CudaLender.describe``."""
        return self._lender.describe(tensors)

    def keep(self, tensors: list[torch.Tensor], ticket: Ticket, edge: str) -> None:
        """Keep tensors until their ticket is back."""
        nbytes = _nbytes(tensors)
        self._lent[edge] += nbytes
        task = asyncio.get_running_loop().create_task(self._keep(tensors, ticket))
        self._keeping.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._keeping.discard(task)
            self._lent[edge] -= nbytes

        task.add_done_callback(done)

    @staticmethod
    async def _keep(tensors: list[torch.Tensor], ticket: Ticket) -> None:
        try:
            await ticket.wait_for_return()
        except RelayError:
            pass  # The relay is closed and its process about to end: there is nobody to keep them for.
        tensors.clear()

    def lent(self) -> dict[str, int]:
        """Bytes on loan, per edge."""
        return {edge: nbytes for edge, nbytes in self._lent.items() if nbytes}


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(span_of(tensor.shape, tensor.stride()) * tensor.element_size() for tensor in tensors)
