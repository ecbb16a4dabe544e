"""CURVE on ``tcp://`` sockets: encrypted, and open only to those who have the run's key pair.

Both ends of every connection use the same pair: who binds is the CURVE server with it, who connects a
client. libzmq asks an authenticator of this process (ZAP, https://rfc.zeromq.org/spec/27/) about each
client; a socket's ZAP domain is its public key, and a client is admitted where its own key is that one.
Several runs with different keys can so live in one process.
"""

from __future__ import annotations

import atexit
import threading
from dataclasses import dataclass, field
from typing import Any, Self

import zmq
from zmq.auth.thread import ThreadAuthenticator

_start_lock = threading.Lock()
# By the libzmq context: that of one process may have several objects in front of it.
_authenticators: dict[int, ThreadAuthenticator] = {}


@dataclass(frozen=True)
class RunKeys:
    """A CURVE key pair, in Z85: 40 characters each. Whoever has it is a part of the run."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def from_secret(cls, secret: str) -> Self:
        """The pair of a secret key. Raises ValueError where it is not 40 characters of Z85."""
        try:
            return cls(zmq.curve_public(secret.encode()).decode(), secret)
        except (ValueError, zmq.ZMQError) as exc:
            raise ValueError("a CURVE secret key has 40 characters of Z85") from exc


class _OnlyItsOwn:
    """Admits the clients of a domain that has the name of their key."""

    @staticmethod
    def callback(domain: str, key: bytes) -> bool:
        return key == domain.encode()


def secure_server(socket: zmq.Socket[Any], keys: RunKeys) -> None:
    """Have a socket that is to bind refuse everybody without ``keys``."""
    _authenticator(socket.context).configure_curve_callback(keys.public, _OnlyItsOwn)
    socket.setsockopt(zmq.ZAP_DOMAIN, keys.public.encode())
    # Without it, libzmq admits any key where no authenticator answers.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    _set_pair(socket, keys)


def secure_client(socket: zmq.Socket[Any], keys: RunKeys) -> None:
    """Have a socket that is to connect talk to a server with ``keys`` only."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.public.encode())
    _set_pair(socket, keys)


def _set_pair(socket: zmq.Socket[Any], keys: RunKeys) -> None:
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())


def _authenticator(context: zmq.Context[Any]) -> ThreadAuthenticator:
    """The one of this context, which has a thread of its own: loops come and go."""
    with _start_lock:
        if (running := _authenticators.get(context.underlying)) is not None:
            return running
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        authenticator = _authenticators[context.underlying] = ThreadAuthenticator(plain)
        authenticator.start()
        # Once modules are taken apart it is too late to join its thread.
        atexit.register(authenticator.stop)
        return authenticator
