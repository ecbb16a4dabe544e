"""libzmq sockets on ``tcp://``: CURVE, limits on what a stranger may cost, and broken links noticed.

Who binds sends heartbeats and who connects waits for them, never the other way round: a receiver that is
paused reads nothing, no answer to a heartbeat either, and must not take that for a broken link.
"""

from __future__ import annotations

import zmq

from sglang_omni.pipeline.transport.curve import RunKeys, secure_client, secure_server

SCHEME = "tcp://"
# The longest message, of four times what a request over HTTP may hold. Memory is used as its bytes arrive.
MAX_MESSAGE = 256 << 20
# What encryption adds to a message, and more.
_OVERHEAD = 1024
# A stranger has so long to prove to be none; a connection that does not is closed.
_HANDSHAKE_MS = 10_000
_HEARTBEAT_MS = 2_000
# A link is taken for broken when nothing was heard for so long, and what was on it is sent again on the
# next. TCP itself makes good what is lost in shorter cuts: after 10 s it has another try within 3 s.
BROKEN_MS = 15_000


def bind_tcp(socket: zmq.Socket[bytes], endpoint: str, keys: RunKeys | None) -> str:
    """Bind and return the endpoint with its port, which the system picks for ``tcp://host:*``.

    Raises:
        ValueError: There are no keys.
        zmq.ZMQError: It cannot be bound.
    """
    secure_server(socket, _needed(keys, endpoint))
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    # No answer is waited for: one that is paused does not read it.
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 0)
    # The peer hears in each heartbeat after how long without another it is to give up.
    socket.setsockopt(zmq.HEARTBEAT_TTL, BROKEN_MS)
    # Heartbeats that nobody acknowledges end the connection here: a dead peer's does not stay for ever.
    socket.setsockopt(zmq.TCP_MAXRT, BROKEN_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE + _OVERHEAD)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    socket.bind(endpoint)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect_tcp(socket: zmq.Socket[bytes], endpoint: str, keys: RunKeys | None) -> None:
    """Connect, whether anybody is there yet or not. Raises ValueError where there are no keys."""
    secure_client(socket, _needed(keys, endpoint))
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE + _OVERHEAD)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    socket.connect(endpoint)


def _needed(keys: RunKeys | None, endpoint: str) -> RunKeys:
    if keys is None:
        raise ValueError(f"{endpoint}: sockets on tcp:// are encrypted and need the run's keys: pass `keys`")
    return keys
