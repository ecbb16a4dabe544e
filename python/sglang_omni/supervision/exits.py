"""How processes end, in words, and what one that hangs writes before it is killed."""

from __future__ import annotations

import faulthandler
import signal

# Time that a process has to write its stacks before it is killed.
STACKS_S = 1.0
_STDERR = 2


def describe_exit(status: int) -> str:
    """An exit status in words; -9 stands for signal 9.

    ``exited with status 1``, ``was killed by SIGKILL (exit status -9)``.
    """
    if status >= 0:
        return f"exited with status {status}"
    name = signal.Signals(-status).name if -status in signal.valid_signals() else f"signal {-status}"
    return f"was killed by {name} (exit status {status})"


def write_stacks_on_sigquit() -> None:
    """Have this process write its threads' stacks to stderr at SIGQUIT, which its parent sends if it hangs.

    C code writes them, which waits for no lock of Python's.
    """
    faulthandler.register(signal.SIGQUIT, _STDERR)
