"""What has come on a connection that the event loop drives."""

from __future__ import annotations

import socket

# A handshake and short messages: who gets long ones reads with a buffer of its own.
_READ_SIZE = 4096


def received(sock: socket.socket) -> bytes | None:
    """The bytes that have come; empty at the connection's end or failure, None if there are none yet."""
    try:
        return sock.recv(_READ_SIZE)
    except BlockingIOError:
        return None
    except OSError:
        return b""
