"""The store of a pair: over the connection they have, two processes send each other where they listen."""

from __future__ import annotations

import socket
import struct
import threading
from datetime import timedelta

import torch.distributed as dist

# Lengths of a key and its value.
_ENTRY = struct.Struct("<HH")


def receive_exactly(connection: socket.socket, nbytes: int) -> bytes | None:
    """Read ``nbytes``; None if the other side has closed the connection."""
    data = b""
    while len(data) < nbytes:
        part = connection.recv(nbytes - len(data))
        if not part:
            return None
        data += part
    return data


class Rendezvous(dist.Store):
    """A store of two: what one side sets is sent to the other, which waits for it.

    No third process can reach it, and a wait ends with the connection if the peer is gone. The connection's
    timeout bounds every wait. Keep it for as long as the group, whose C++ half does not.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection
        self._thread = threading.get_ident()
        self._entries: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]  # bytes from C++
        """See ``dist.Store.set``."""
        self._entries[key] = value
        if threading.get_ident() != self._thread:
            return  # NCCL's watchdog sends all ranks its troubles, at any time: a link has its own ways.
        name = key.encode()
        self._connection.sendall(_ENTRY.pack(len(name), len(value)) + name + value)

    def get(self, key: str) -> bytes:
        """See ``dist.Store.get``.

        Raises:
            ConnectionError: The other side is gone.
            TimeoutError: It did not say in time.
        """
        self.wait([key])
        return self._entries[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """See ``dist.Store.wait``; the connection's timeout counts."""
        while not all(key in self._entries for key in keys):
            key_bytes, value_bytes = _ENTRY.unpack(self._receive(_ENTRY.size))
            key = self._receive(key_bytes).decode(errors="replace")
            self._entries[key] = self._receive(value_bytes)

    def check(self, keys: list[str]) -> bool:
        """See ``dist.Store.check``; of what has been received."""
        return all(key in self._entries for key in keys)

    def _receive(self, nbytes: int) -> bytes:
        data = receive_exactly(self._connection, nbytes)
        if data is None:
            raise ConnectionError("it has closed the connection")
        return data
