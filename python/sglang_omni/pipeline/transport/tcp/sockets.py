"""libzmq sockets on ``tcp://``: CURVE, limits on what a stranger may cost, and broken links noticed.

Both ends send heartbeats, and take a link for broken on which they hear nothing. That holds for a receiver
that is paused too: its socket goes on reading, as it has room for all that its senders may have under way.
"""

from __future__ import annotations

import zmq

from sglang_omni.pipeline.transport import open_files
from sglang_omni.pipeline.transport.keys import RunKeys, secure_client, secure_server

SCHEME = "tcp://"
# The longest message, four times what a request over HTTP may hold. Memory is used as its bytes arrive.
MAX_MESSAGE = 256 << 20
# What encryption adds to a message, and more.
_OVERHEAD = 1024
# A stranger has so long to prove to be none; a connection that does not is closed.
_HANDSHAKE_MS = 10_000
# Connections that wait to be accepted: a burst of strangers' leaves room for ours.
_BACKLOG = 1024
HEARTBEAT_MS = 2_000
# A link is taken for broken when nothing was heard for so long, and what was on it is sent again on the
# next. TCP itself makes good what is lost in shorter cuts: after 10 s it has another try within 3 s.
BROKEN_MS = 15_000


def bind_tcp(socket: zmq.Socket[bytes], endpoint: str, keys: RunKeys | None) -> str:
    """Bind and return the endpoint with its port, which the system picks for ``tcp://host:*``.

    Raises the process's soft limit of open files, since strangers can have it open some.

    Raises:
        ValueError: There are no keys.
        zmq.ZMQError: It cannot be bound.
    """
    open_files.raise_limit()
    secure_server(socket, required(keys, endpoint))
    socket.setsockopt(zmq.BACKLOG, _BACKLOG)
    _set_limits(socket, endpoint)
    socket.bind(endpoint)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect_tcp(socket: zmq.Socket[bytes], endpoint: str, keys: RunKeys | None) -> None:
    """Connect, whether anybody is there yet or not. Raises ValueError where there are no keys."""
    secure_client(socket, required(keys, endpoint))
    _set_limits(socket, endpoint)
    socket.connect(endpoint)


def _set_limits(socket: zmq.Socket[bytes], endpoint: str) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, BROKEN_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE + _OVERHEAD)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)


def required(keys: RunKeys | None, endpoint: str) -> RunKeys:
    """``keys``. Raises ValueError where there are none."""
    if keys is None:
        raise ValueError(f"{endpoint}: sockets on tcp:// are encrypted and need the run's keys: pass `keys`")
    return keys
