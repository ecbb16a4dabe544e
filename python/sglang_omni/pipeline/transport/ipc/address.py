"""The path of the Unix socket that an ``ipc://`` endpoint names."""

from __future__ import annotations

import os

SCHEME = "ipc://"
# Bytes that ``sockaddr_un`` has room for.
LONGEST_PATH = 107


def is_on_this_host(endpoint: str) -> bool:
    """True for an ``ipc://`` endpoint. An instance that has one keeps it when ``tcp://`` ones are told."""
    return endpoint.startswith(SCHEME)


def socket_path(endpoint: str) -> str:
    """The path in an ``ipc://`` endpoint. Raises ValueError if it cannot be a Unix socket's."""
    path = endpoint.removeprefix(SCHEME)
    if not path or path[0] in "@*":
        raise ValueError(f"{endpoint!r} names no file: use ipc:// and the path of one")
    if (size := len(os.fsencode(path))) > LONGEST_PATH:
        raise ValueError(
            f"the path of {endpoint!r} has {size} bytes, more than the {LONGEST_PATH} that a Unix socket "
            "allows: use a shorter folder"
        )
    return path
