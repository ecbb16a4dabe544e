"""A server whose connections answer as a script says: refuse, break, wait, or say what they are told."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Act:
    """What one connection does with its request.

    Attributes:
        answer: The bytes that are sent.
        resets: The connection ends with a reset, not in order.
        holds: It stays open until the server is closed.
    """

    answer: bytes = b""
    resets: bool = False
    holds: bool = False


def http(status: int, body: Any, length: int | None = None, **headers: str) -> bytes:
    """A whole answer; ``length`` tells another length than that of the body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reported = {"content-length": str(len(content) if length is None else length), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in reported.items())
    return f"HTTP/1.1 {status} Said\r\n{lines}connection: close\r\n\r\n".encode() + content


def completion(text: str) -> bytes:
    return http(200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


RESET = Act(resets=True)
CLOSED = Act()


@dataclass
class FaultyServer:
    """
    Attributes:
        bodies: Of the requests that came, decoded.
        paths: Theirs.
    """

    acts: Sequence[Act]
    port: int = 0
    bodies: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *exc_info: object) -> None:
        self._closed.set()
        # Wakes the thread if it waits for a connection that does not come.
        socket.create_connection(self._listener.getsockname()).close()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        held = []
        for act in self.acts:
            connection, _ = self._listener.accept()
            if self._closed.is_set():
                break
            self._take(connection)
            connection.sendall(act.answer)
            if act.holds:
                held.append(connection)
                continue
            if act.resets:
                # Without lingering, closing sends a reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        self._closed.wait()
        for connection in held:
            connection.close()

    def _take(self, connection: socket.socket) -> None:
        file = connection.makefile("rb")
        self.paths.append(file.readline().split()[1].decode())
        length = 0
        while line := file.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        content = file.read(length)
        self.bodies.append(json.loads(content) if content.startswith(b"{") else content)
