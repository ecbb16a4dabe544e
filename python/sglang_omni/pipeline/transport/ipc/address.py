"""``ipc://`` endpoints: ZMTP over Unix sockets that the event loop drives itself.

libzmq would hand every message from its caller to a thread of its own and back on the other side; that
takes longer than the kernel needs to carry it. ``local_push`` and ``local_pull`` speak the same protocol, so
libzmq's PUSH and PULL can be at the other end.
"""

from __future__ import annotations

import os

SCHEME = "ipc://"
# What ``sockaddr_un`` has room for.
LONGEST_PATH = 107


def socket_path(endpoint: str) -> str:
    """The file of an ``ipc://`` endpoint. Raises ValueError where it cannot be a Unix socket's."""
    path = endpoint.removeprefix(SCHEME)
    if not path or path[0] in "@*":
        raise ValueError(f"{endpoint!r} names no file: use ipc:// and the path of one")
    if (size := len(os.fsencode(path))) > LONGEST_PATH:
        raise ValueError(
            f"the path of {endpoint!r} has {size} bytes, more than the {LONGEST_PATH} that a Unix socket "
            "allows: use a shorter folder"
        )
    return path
