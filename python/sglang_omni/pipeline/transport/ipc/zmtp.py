"""ZMTP 3.0 with the NULL mechanism, apart from any socket: https://rfc.zeromq.org/spec/23/

    connection = greeting handshake traffic      greeting: 64 octets, the same from both ends
    handshake  = a READY command from each end, with the type of its socket
    traffic    = *(frame)                        frame: flags, length of 1 or 8 octets, body

The control plane sends each message as one frame.
"""

from __future__ import annotations

import logging
from typing import Literal

logger = logging.getLogger(__name__)

SocketType = Literal["PUSH", "PULL", "PUB", "SUB"]

# Bits of a frame's flags.
MORE, LONG, COMMAND = 1, 2, 4
# Bytes of the longest frame; memory is taken as they arrive.
MAX_FRAME = 1 << 30

_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_MECHANISM = b"NULL".ljust(20, b"\0")
_GREETING_SIZE = 64
# Signature, version 3.0, mechanism, as-server, filler.
GREETING = (_SIGNATURE + b"\x03\x00" + _MECHANISM).ljust(_GREETING_SIZE, b"\0")

_PEER_OF: dict[SocketType, bytes] = {"PUSH": b"PULL", "PULL": b"PUSH", "PUB": b"SUB", "SUB": b"PUB"}


class ZmtpError(ValueError):
    """The peer breaks the protocol, or its socket is of the wrong type."""


def frame_header(size: int, flags: int = 0) -> bytes:
    """The flags and length in front of a body of ``size`` bytes."""
    if size < 256:
        return bytes((flags, size))
    return bytes((flags | LONG,)) + size.to_bytes(8, "big")


def opening(socket_type: SocketType) -> bytes:
    """The first bytes of one end: its greeting and its READY command."""
    ready = b"\x05READY" + _property(b"Socket-Type", socket_type.encode()) + _property(b"Identity", b"")
    return GREETING + frame_header(len(ready), COMMAND) + ready


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


class Parser:
    """Parses what one peer sends: ``feed`` it bytes as they come, then take out all messages.

    Commands after the handshake have no meaning between sockets of these types and are skipped.

    Args:
        socket_type: The type of the socket at this end.

    Attributes:
        ready: True if the peer's handshake is complete.
        missing: How many bytes the incomplete frame lacks; 0 if there is none or its length is not known.
    """

    def __init__(self, socket_type: SocketType) -> None:
        self._socket_type = socket_type
        # The bytes being parsed, and the position in them.
        self._data = b""
        self._at = 0
        # The incomplete frame.
        self._flags = 0
        self._parts: list[bytes] = []
        self._greeted = False
        self._in_multipart = False
        self.ready = False
        self.missing = 0

    def feed(self, data: bytes) -> None:
        """Takes the next bytes. Call it only after ``next_message`` has returned None."""
        # At most a part of a greeting or header: the parts of a body are in ``_parts``.
        rest = self._data[self._at :]
        self._data = rest + data if rest else data
        self._at = 0

    def next_message(self) -> bytes | None:
        """The next complete message, or None. Raises ZmtpError, after which the connection must be closed."""
        while (frame := self._next_frame()) is not None:
            flags, body = frame
            if flags & ~LONG or not self.ready or self._in_multipart:
                self._take_other(flags, body)
            else:
                return body
        return None

    def _next_frame(self) -> tuple[int, bytes] | None:
        data, at = self._data, self._at
        left = len(data) - at
        if self.missing:
            return self._continue_frame(left)
        if not self._greeted:
            _check_greeting(data)
            if left < _GREETING_SIZE:
                return None
            self._greeted = True
            self._at = _GREETING_SIZE
            return self._next_frame()
        if left < 2:
            return None
        flags = data[at]
        if flags > MORE | LONG | COMMAND:
            raise ZmtpError(f"a frame with the unknown flags {flags:#04x}")
        if flags & LONG:
            if left < 9:
                return None
            body = at + 9
            size = int.from_bytes(data[at + 1 : body], "big")
            if size > MAX_FRAME:
                raise ZmtpError(f"a frame of {size} bytes, more than {MAX_FRAME}")
        else:
            body = at + 2
            size = data[at + 1]
        end = body + size
        if end > len(data):
            self._at = body
            self._flags, self.missing = flags, size
            return self._continue_frame(len(data) - body)
        self._at = end
        return flags, data[body:end]

    def _continue_frame(self, left: int) -> tuple[int, bytes] | None:
        """Takes what has come of the incomplete frame."""
        end = self._at + min(left, self.missing)
        self._parts.append(self._data[self._at : end])
        self.missing -= end - self._at
        self._at = end
        if self.missing:
            return None
        body = b"".join(self._parts)
        self._parts = []
        return self._flags, body

    def _take_other(self, flags: int, body: bytes) -> None:
        """Handles a frame that is not a whole message."""
        if flags & COMMAND:
            if not self.ready:
                self._take_handshake(body)
            return
        if not self.ready:
            raise ZmtpError("a message before the READY command")
        if not self._in_multipart:
            logger.warning("Dropped a message of several parts: every message is one part")
        self._in_multipart = bool(flags & MORE)

    def _take_handshake(self, body: bytes) -> None:
        if body.startswith(b"\x05ERROR"):
            raise ZmtpError(f"the peer refused the connection: {body[7:200]!r}")
        if not body.startswith(b"\x05READY"):
            raise ZmtpError(f"a command {body[:8]!r} where READY was due")
        peer = _properties(body[6:]).get(b"socket-type")
        if peer != _PEER_OF[self._socket_type]:
            raise ZmtpError(f"a peer of type {peer!r} at a {self._socket_type} socket")
        self.ready = True


def _check_greeting(data: bytes) -> None:
    """Checks as much as has come, so that a peer of another protocol is refused at once."""
    if not data:
        return
    if data[:1] != _SIGNATURE[:1] or (len(data) > 9 and data[9] != _SIGNATURE[9]):
        raise ZmtpError(f"it does not speak ZMTP: {data[:16]!r}")
    if len(data) > 10 and data[10] < 3:
        raise ZmtpError(f"it speaks ZMTP {data[10]}, not 3")
    if len(data) >= 32 and data[12:32] != _MECHANISM:
        raise ZmtpError(f"its security mechanism is {data[12:32]!r}, not NULL")


def _properties(data: bytes) -> dict[bytes, bytes]:
    """The metadata of a READY command; names in lower case, as they are case-insensitive."""
    found = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        start = name_end + 4
        end = start + int.from_bytes(data[name_end:start], "big")
        if end > len(data):
            raise ZmtpError("a READY command with a property that is cut off")
        found[data[at + 1 : name_end].lower()] = data[start:end]
        at = end
    return found
