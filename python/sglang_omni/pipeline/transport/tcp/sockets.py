"""Opens libzmq sockets on ``tcp://``: with CURVE, limits on what a stranger may cost, and heartbeats.

Both ends send heartbeats, and consider a silent link broken. That works for a paused receiver too: its
socket goes on reading, as it has room for all that its senders may have under way.
"""

from __future__ import annotations

import zmq

from sglang_omni.pipeline.transport import open_files
from sglang_omni.pipeline.transport.keys import RunKeys, secure_client, secure_server

SCHEME = "tcp://"
# Bytes of the longest message: four times what a request over HTTP may hold. Memory is taken as they arrive.
MAX_MESSAGE = 256 << 20
# Bytes that encryption may add to a message; it adds fewer.
_OVERHEAD = 1024
# A connection that is not authenticated after this time is closed.
_HANDSHAKE_MS = 10_000
# Connections that may wait to be accepted: enough that a burst of strangers leaves room for ours.
_BACKLOG = 1024
HEARTBEAT_MS = 2_000
# A link that is silent for this time is broken: its messages are sent again over a new one. TCP itself
# repairs shorter cuts: after 10 s without an answer it tries again within 3 s.
BROKEN_MS = 15_000


def bind_tcp(socket: zmq.Socket[bytes], endpoint: str, keys: RunKeys | None) -> str:
    """Binds and returns the endpoint with its port, which the system picks for ``tcp://host:*``.

    Also raises the process's soft limit of open files, since strangers' connections take some.

    Raises:
        ValueError: There are no keys.
        zmq.ZMQError: The endpoint cannot be bound.
    """
    open_files.raise_limit()
    secure_server(socket, required(keys, endpoint))
    socket.setsockopt(zmq.BACKLOG, _BACKLOG)
    _set_limits(socket, endpoint)
    socket.bind(endpoint)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect_tcp(socket: zmq.Socket[bytes], endpoint: str, keys: RunKeys | None) -> None:
    """Connects, whether the peer is there yet or not. Raises ValueError if there are no keys."""
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
    """Returns ``keys``. Raises ValueError if there are none."""
    if keys is None:
        raise ValueError(f"{endpoint}: sockets on tcp:// are encrypted and need the run's keys: pass `keys`")
    return keys
