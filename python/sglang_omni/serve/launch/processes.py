"""What a server's processes share: how they are told to end, and do so in time; where they listen."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

# The environment variable by which a fleet's router gets its config, as JSON: it may hold keys.
ROUTER_CONFIG = "SGLANG_OMNI_ROUTER_CONFIG"
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel send SIGINT to this process when its parent dies, however it dies.

    It ends it at once: nobody is left to wait for what is under way.

    Args:
        parent_pid: Who is meant; where that process is gone already, this one exits at once.
    """
    # A shell has what it starts with `&` ignore Ctrl-C, and the children of that inherit it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        raise SystemExit("the process that started this one is gone")


def on_stop_signals(told: Callable[[signal.Signals], object]) -> None:
    """Have the running loop call this at SIGINT, SIGTERM, and SIGHUP where it is not ignored (``nohup``).

    SIGINT is ignored, too, in what a shell starts with ``&``, but there whoever sends it means it.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, told, number)


class StopSignals:
    """What a server is asked by signals, from when this is made in its event loop.

    SIGTERM and SIGHUP let requests end first; SIGINT does not, nor does a second signal of any kind.

    Attributes:
        received: Set by the first.
        at_once: Set as soon as nothing is to be waited for.
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
        """Wait until it has ended, for so long at the most, and not where nothing is to be waited for."""
        ended = asyncio.ensure_future(ending)
        hurried = asyncio.ensure_future(self.at_once.wait())
        await asyncio.wait({ended, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (ended, hurried):
            waiting.cancel()

    def status_unserved(self) -> int:
        """The exit status where nothing was served before: 130 for Ctrl-C, as shells have it."""
        return 128 + signal.SIGINT if self._number == signal.SIGINT else 0


def exit_after(seconds: float) -> None:
    """The last resort of a shutdown: end this process, finished or not."""

    def end() -> None:
        print(f"still not shut down after {seconds:g} s: exiting", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket that does not listen yet.

    Raises:
        OSError: The address cannot be used; the text names it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio lets accepted connections send at once (TCP_NODELAY) only if the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise OSError(exc.errno, f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    return listener
