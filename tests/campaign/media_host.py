"""A host from which the campaign's first stage fetches media, whole or not, as a request's URL says."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from typing import Literal

Medium = Literal["none", "whole", "slow", "refused", "reset", "truncated", "unended", "silent"]

# Of these an answer can come; of a silent host none does, and its request is left.
ARRIVING: tuple[Medium, ...] = ("whole", "slow")
BROKEN: tuple[Medium, ...] = ("refused", "reset", "truncated", "unended")
_PIECES = 4
_SLOW_S = 0.05
_RESETS = struct.pack("ii", 1, 0)


def drawn_medium(draw: random.Random) -> Medium:
    """For half of the requests none, and for each second one of the others a medium that arrives."""
    if draw.random() < 0.5:
        return "none"
    return draw.choice(ARRIVING) if draw.random() < 0.5 else draw.choice((*BROKEN, "silent"))


def medium_of(value: int, size: int) -> bytes:
    """What the host sends: a byte more than ``size``, since an empty medium is refused."""
    return bytes([value % 251]) * (1 + size)


class MediaHost:
    """Answers ``/KIND/VALUE/SIZE``. URLs of the kind ``refused`` have a port on which nobody listens."""

    def __init__(self, port: int, refusing_port: int) -> None:
        self._port, self._refusing_port = port, refusing_port

    def url(self, kind: Medium, value: int, size: int) -> str:
        port = self._refusing_port if kind == "refused" else self._port
        return f"http://127.0.0.1:{port}/{kind}/{value}/{size}"


@contextlib.asynccontextmanager
async def media_host() -> AsyncIterator[MediaHost]:
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(_serve, "127.0.0.1", 0)
        try:
            yield MediaHost(server.sockets[0].getsockname()[1], refusing.getsockname()[1])
        finally:
            server.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # Clients are killed, and leave at any moment.
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        _, kind, value, size = head.split()[1].decode().split("/")
        await _send(reader, writer, kind, medium_of(int(value), int(size)))
    writer.close()


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str, body: bytes) -> None:
    if kind == "silent":
        await reader.read()
        return
    if kind == "unended":
        # Its end is missing, which in chunks is an empty one.
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(body), body))
        return
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body))
    if kind in ("reset", "truncated"):
        writer.write(body[: len(body) // 2])
        await writer.drain()
        if kind == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
            writer.transport.abort()
        return
    step = len(body) // _PIECES + 1
    for start in range(0, len(body), step):
        writer.write(body[start : start + step])
        await writer.drain()
        if kind == "slow":
            await asyncio.sleep(_SLOW_S)
