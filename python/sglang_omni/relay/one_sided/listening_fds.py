"""Finds the listening sockets that a library of this process has opened, without asking the library."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterable
from typing import NamedTuple


class Listener(NamedTuple):
    """A listening TCP socket of this process: its file descriptor, and what no later one has."""

    fd: int
    inode: int

    def is_there(self) -> bool:
        """True if it is still open."""
        try:
            return os.fstat(self.fd).st_ino == self.inode
        except OSError:
            return False


def listeners() -> set[Listener]:
    """All listening TCP sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # Other threads close theirs meanwhile, and most files are no sockets.
        with contextlib.suppress(OSError):
            fd = int(name)
            if _is_listening(fd):
                found.add(Listener(fd, os.fstat(fd).st_ino))
    return found


def occupy(lost: Iterable[Listener]) -> None:
    """Take the descriptor numbers of listeners that a library has lost, for good.

    A library that knows its sockets by those numbers takes a later one for the one that is lost.

    Raises:
        OSError: This process may open no more files.
    """
    numbers = {listener.fd for listener in lost}
    spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for number in numbers - {spare}:
        fd = fcntl.fcntl(spare, fcntl.F_DUPFD_CLOEXEC, number)
        if fd != number:  # Taken by another file meanwhile.
            os.close(fd)
    if spare not in numbers:
        os.close(spare)


def _is_listening(fd: int) -> bool:
    probe = socket.socket(fileno=fd)
    try:
        return probe.family in (socket.AF_INET, socket.AF_INET6) and bool(
            probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        )
    finally:
        probe.detach()
