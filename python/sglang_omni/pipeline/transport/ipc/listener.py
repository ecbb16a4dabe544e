"""Listens on a path, and goes on when there was no descriptor or memory for a connection."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Callable

from sglang_omni.supervision.forks import own

logger = logging.getLogger(__name__)

_WAITING_CONNECTIONS = 128
# Seconds that new connections wait if there is no descriptor or memory for them.
_ACCEPT_PAUSE_S = 0.25


class IpcListener:
    """Binds ``path`` and hands each connection to ``take``.

    Raises:
        OSError: The path cannot be bound.
    """

    def __init__(self, path: str, take: Callable[[socket.socket], None]) -> None:
        self._path = path
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._sock = own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            self._sock.setblocking(False)
            self._bind()
        except OSError:
            self._sock.close()
            raise
        self._loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Takes no more, and removes the file, unless another socket has taken its place."""
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._sock.close()
        try:
            if _identity(self._path) == self._file:
                os.unlink(self._path)
        except FileNotFoundError:
            pass

    def _bind(self) -> None:
        """Binds in place of an earlier socket: a killed process leaves its file behind."""
        try:
            if stat.S_ISSOCK(os.stat(self._path).st_mode):
                os.unlink(self._path)
        except FileNotFoundError:
            pass
        self._sock.bind(self._path)
        self._file = _identity(self._path)
        self._sock.listen(_WAITING_CONNECTIONS)

    def _accept(self) -> None:
        for _ in range(_WAITING_CONNECTIONS):
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # the peer has left already
            except OSError as exc:
                logger.error("%s takes no connections for %g s: %s", self._path, _ACCEPT_PAUSE_S, exc)
                self._loop.remove_reader(self._sock)
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again)
                return
            own(sock).setblocking(False)
            self._take(sock)

    def _accept_again(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock, self._accept)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
