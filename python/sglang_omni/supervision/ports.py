"""Ports that a process listens on, or holds for a child that will."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from sglang_omni.supervision.forks import own

_LOCK = "sglang-omni-port"
_LISTENS = "0A"  # a state in /proc/net/tcp


def bind(host: str, port: int = 0) -> socket.socket:
    """A bound TCP socket that does not listen yet.

    While it is open and never listens, it also holds the port for a child process: the system does not
    give the port out as free, and the child, which binds it by number, may have it.

    Args:
        host: An address of this machine.
        port: 0 picks a free one.

    Raises:
        OSError: The address cannot be used; the text names it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio lets accepted connections send at once (TCP_NODELAY) only if the protocol is named.
    listener = own(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise _cannot_listen(host, port, exc) from exc
    return listener


@contextlib.contextmanager
def bind_alone(host: str, port: int = 0) -> Iterator[socket.socket]:
    """``bind`` for a server that listens only once it has loaded its models, which may take minutes.

    The system lets any number of sockets have a port until one of them listens. So this one's is locked by a
    name in the network's own namespace, where users and containers that share the port meet.

    Raises:
        OSError: The address cannot be used, or another server loads its models for this port.
    """
    with bind(host, port) as listener, own(socket.socket(socket.AF_UNIX)) as lock:
        address, number = listener.getsockname()[:2]
        try:
            lock.bind(f"\0{_LOCK}/{number}/{address}")
            # After its own, so that of two that begin at once one sees the other.
            if any(_overlap(address, other) for other in _locked(number) if other != address):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        except OSError as exc:
            raise _cannot_listen(host, port, exc) from exc
        yield listener


def listen(listener: socket.socket, backlog: int) -> None:
    """Listen on a bound socket.

    Raises:
        OSError: Another program has begun to since it was bound; the text names the port.
    """
    try:
        listener.listen(backlog)
    except OSError as exc:
        host, port = listener.getsockname()[:2]
        raise _cannot_listen(host, port, exc) from exc


def listens(pid: int, port: int) -> bool:
    """True if this process itself listens on a port of any address."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a system without IPv6
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    with contextlib.suppress(FileNotFoundError):  # the process has ended, or this descriptor was closed
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") in sockets:
                    return True
    return False


def _locked(port: int) -> Iterator[str]:
    """The addresses at which this port is locked."""
    name = f"@{_LOCK}/{port}/"
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
        _, found, address = line.partition(name)
        if found:
            yield address


def _overlap(one: str, other: str) -> bool:
    """True if a port of two different addresses is one: either is every address. `::` is IPv4's, too."""
    return "::" in (one, other) or ("0.0.0.0" in (one, other) and (":" in one) == (":" in other))


def _cannot_listen(host: str, port: int, exc: OSError) -> OSError:
    text = f"cannot listen on {host}:{port}: {exc.strerror}"
    if exc.errno == errno.EADDRINUSE:
        text = f"port {port} of {host} is in use; give another one, or 0 for a free one"
    return OSError(exc.errno, text)
