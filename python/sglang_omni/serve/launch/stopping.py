"""How a server's processes are told to end, and end in time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from sglang_omni.supervision.parent import end_with_parent


def stop_with_parent(parent_pid: int) -> None:
    """Have the kernel send SIGINT to this process when its parent dies, which stops it without draining.

    Args:
        parent_pid: The expected parent; if it has already exited, this process exits too.
    """
    # A program that a shell starts with `&` ignores SIGINT, and so do its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not end_with_parent(parent_pid, signal.SIGINT):
        raise SystemExit("the process that started this one is gone")


def on_stop_signals(told: Callable[[signal.Signals], object]) -> None:
    """Have the running loop call ``told`` at SIGINT and SIGTERM, and at SIGHUP unless ``nohup`` ignores it.

    A program that a shell starts with ``&`` ignores SIGINT, too, but a SIGINT that is sent to it is meant.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, told, number)


class StopSignals:
    """The signals that stop a server, from its creation in the event loop on.

    SIGTERM and SIGHUP let requests end first; SIGINT does not, nor does a second signal of any kind.

    Attributes:
        received: Set by the first signal.
        at_once: Set as soon as requests must not be waited for.
    """

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self.at_once = asyncio.Event()
        self._number = signal.SIGTERM
        on_stop_signals(self._on_signal)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.received.is_set():
            self._number = number
        if number == signal.SIGINT or self.received.is_set():
            self.at_once.set()
        self.received.set()

    async def give_time(self, ending: Coroutine[Any, Any, None], seconds: float) -> None:
        """Run ``ending`` for as many seconds at most, and only until ``at_once``."""
        ended = asyncio.ensure_future(ending)
        hurried = asyncio.ensure_future(self.at_once.wait())
        await asyncio.wait({ended, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (ended, hurried):
            waiting.cancel()

    def status_unserved(self) -> int:
        """The exit status if nothing was served before the signal: 130 for Ctrl-C, as shells have it."""
        return 128 + signal.SIGINT if self._number == signal.SIGINT else 0


def exit_after(seconds: float) -> None:
    """End this process after this time, as the last resort of a shutdown."""

    def end() -> None:
        print(f"still not shut down after {seconds:g} s: exiting", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
