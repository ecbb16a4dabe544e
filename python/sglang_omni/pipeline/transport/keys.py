"""The run's keys: CURVE encrypts ``tcp://`` sockets and admits only processes that have the run's key pair.

Both ends of a connection use the same pair: the socket that binds is the CURVE server, the one that connects
the client. libzmq asks an authenticator of this process (ZAP, https://rfc.zeromq.org/spec/27/) about each
client. A socket's ZAP domain is its public key, and a client is admitted if its own key is the same. So
several runs with different keys can share a process.
"""

from __future__ import annotations

import atexit
import threading
from dataclasses import dataclass, field
from typing import Any, Self

import zmq
from zmq.auth.thread import ThreadAuthenticator

_start_lock = threading.Lock()
# By libzmq context: several Context objects may stand for the same one.
_authenticators: dict[int, ThreadAuthenticator] = {}


@dataclass(frozen=True)
class RunKeys:
    """A CURVE key pair in Z85, 40 characters each. A process that has it is a part of the run."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def from_secret(cls, secret: str) -> Self:
        """The pair of a secret key. Raises ValueError if it is not 40 characters of Z85."""
        try:
            return cls(zmq.curve_public(secret.encode()).decode(), secret)
        except (ValueError, zmq.ZMQError) as exc:
            raise ValueError("a CURVE secret key has 40 characters of Z85") from exc


class _OnlyItsOwn:
    """Admits a client to the domain that is named after its key."""

    @staticmethod
    def callback(domain: str, key: bytes) -> bool:
        return key == domain.encode()


def secure_server(socket: zmq.Socket[Any], keys: RunKeys) -> None:
    """Makes a socket refuse peers without ``keys``. Call it before ``bind``."""
    _authenticator(socket.context).configure_curve_callback(keys.public, _OnlyItsOwn)
    socket.setsockopt(zmq.ZAP_DOMAIN, keys.public.encode())
    # Without it, libzmq admits any key if no authenticator answers.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    _set_pair(socket, keys)


def secure_client(socket: zmq.Socket[Any], keys: RunKeys) -> None:
    """Makes a socket talk only to a server with ``keys``. Call it before ``connect``."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.public.encode())
    _set_pair(socket, keys)


def _set_pair(socket: zmq.Socket[Any], keys: RunKeys) -> None:
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())


def _authenticator(context: zmq.Context[Any]) -> ThreadAuthenticator:
    """The context's authenticator. It has a thread of its own, as event loops come and go."""
    with _start_lock:
        if (running := _authenticators.get(context.underlying)) is not None:
            return running
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        authenticator = _authenticators[context.underlying] = ThreadAuthenticator(plain)
        authenticator.start()
        # Its thread must be joined before the interpreter takes modules apart.
        atexit.register(authenticator.stop)
        return authenticator
