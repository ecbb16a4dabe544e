"""Ports that a process listens on, or holds for a child that will."""

from __future__ import annotations

import errno
import socket


def bind(host: str, port: int = 0) -> socket.socket:
    """A bound TCP socket that does not listen yet.

    While it is open and never listens, it also holds the port for a child process: the system does not
    give the port out as free, and the child, which binds it by number, may have it.

    Args:
        host: An address of this machine.
        port: 0 picks a free one.

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
        text = f"cannot listen on {host}:{port}: {exc.strerror}"
        if exc.errno == errno.EADDRINUSE:
            text = f"port {port} of {host} is in use; give another one, or 0 for a free one"
        raise OSError(exc.errno, text) from exc
    return listener
