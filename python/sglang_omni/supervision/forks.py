"""Sockets that end with their process, although it may have children.

A child of ``fork`` has copies of its parent's descriptors. As long as it lives, peers of a parent that died
see its connections open and wait, and a port that it listened on stays in use. Children that run another
program have none: Python's descriptors are closed there.
"""

from __future__ import annotations

import os
import socket
import weakref

_OWN: weakref.WeakSet[socket.socket] = weakref.WeakSet()
# Takes the place of each in a child: its number must not become another file's, which code that still has the
# number would then close.
_STAND_IN = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def own(sock: socket.socket) -> socket.socket:
    """The socket, of which forked children get no copy."""
    _OWN.add(sock)
    return sock


def _close_in_child() -> None:
    for sock in list(_OWN):
        if sock.fileno() >= 0:
            os.dup2(_STAND_IN, sock.fileno(), inheritable=False)
    _OWN.clear()


os.register_at_fork(after_in_child=_close_in_child)
