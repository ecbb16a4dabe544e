"""Views a tensor's memory as bytes, and runs calls in threads without keeping their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

_T = TypeVar("_T")


def bytes_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous CPU tensor as a writable array of its bytes."""
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


async def in_thread(call: Callable[[], _T], threads: ThreadPoolExecutor | None = None) -> _T:
    """Run ``call`` in a thread and return its result.

    The futures of ``asyncio.to_thread`` keep the result until the garbage collector finds them; this one does
    not, so a lease ends with its last view.

    Args:
        call: The call.
        threads: Where it runs; the event loop's default threads if None.
    """
    returned: list[_T] = []

    def keep() -> None:
        returned.append(call())

    await asyncio.get_running_loop().run_in_executor(threads, keep)
    return returned.pop()
