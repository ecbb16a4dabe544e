"""Shared by the tests of the ``ipc://`` sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from waiting import until

from sglang_omni.pipeline.transport.ipc.sockets import IpcPullSocket

WAIT_S = 60
MIB = 1 << 20


class Pull:
    """A IpcPullSocket and what it has delivered; ``takes`` says after each message whether to go on."""

    def __init__(self, endpoint: str, takes: Callable[[], bool] = lambda: True) -> None:
        self.messages: list[bytes] = []
        self.takes = takes
        self.socket = IpcPullSocket(endpoint, self._deliver)

    def _deliver(self, message: bytes) -> bool:
        self.messages.append(message)
        return self.takes()

    async def until(self, count: int) -> list[bytes]:
        await until(lambda: len(self.messages) >= count)
        return self.messages


def raw(endpoint: str) -> socket.socket:
    """A client that says what it likes."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(endpoint.removeprefix("ipc://"))
    client.settimeout(WAIT_S)
    return client


async def is_closed(client: socket.socket) -> bool:
    """True if the other end closes the connection."""

    def read_to_the_end() -> None:
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass

    await asyncio.wait_for(asyncio.to_thread(read_to_the_end), WAIT_S)
    return True


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [b"%d" % i + b"." * size for i in range(count)]
