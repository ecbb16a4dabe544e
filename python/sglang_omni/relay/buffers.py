"""Tensors as buffers, and calls in threads whose results are let go of with their last reference."""

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
    """As ``asyncio.to_thread``, whose futures keep what ``call`` returned until the collector finds them."""
    returned: list[_T] = []

    def keep() -> None:
        returned.append(call())

    await asyncio.get_running_loop().run_in_executor(threads, keep)
    return returned.pop()
