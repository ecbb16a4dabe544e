"""The end of a process together with its parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int, number: signal.Signals) -> bool:
    """Have the kernel send this process a signal when its parent dies (Linux only).

    Args:
        parent_pid: The expected parent.
        number: The signal.

    Returns:
        True if the parent is still there. If not, the signal will never come: the process should exit.

    Raises:
        OSError: The kernel refuses.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent_pid
