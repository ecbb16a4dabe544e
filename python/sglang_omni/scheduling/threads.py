"""Runs blocking loops side by side, each thread on its stage's GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_this_thread = threading.local()


def use_gpu(index: int | None) -> None:
    """Has the calling thread compute on a GPU. Of no effect without one.

    CUDA's current device and context belong to a thread: a new one begins on the first GPU, and without a
    context, which what calls the driver itself (Triton) needs.

    Args:
        index: N of ``cuda:N``; None leaves the thread as it is.
    """
    if index is None:
        return
    _this_thread.gpu = index
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(index)


def on_this_gpu(work: Callable[_P, _R]) -> Callable[_P, _R]:
    """``work``, to be run in another thread, on the GPU that the calling thread has been given."""
    index: int | None = getattr(_this_thread, "gpu", None)

    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        use_gpu(index)
        return work(*args, **kwargs)

    return work if index is None else run


def run_together(loops: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Runs every loop in a thread of its own, on the calling thread's GPU, until all have returned.

    The first exception calls ``stop``, which must end the other loops, and is then raised.
    """
    with ThreadPoolExecutor(len(loops), thread_name_prefix="worker") as pool:
        running = [pool.submit(on_this_gpu(loop)) for loop in loops]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        failures = [error for future in done if (error := future.exception()) is not None]
        if failures:
            stop()
    if failures:
        raise failures[0]
