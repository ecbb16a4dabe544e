"""This machine's addresses for other hosts."""

from __future__ import annotations

import socket


def address_towards(host: str, port: int) -> str:
    """This host's address from which packets to ``host`` leave. Sends none.

    Raises:
        ValueError: There is no route to it.
    """
    try:
        family, kind, _, _, peer = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError as exc:
        raise ValueError(f"no way to {host} from this machine: {exc}") from exc


def require_own_address(address: str) -> None:
    """Raise ValueError if the address is none of this machine's."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as exc:
        raise ValueError(
            f"{address!r} is not an address of this machine, where other hosts could reach it: {exc.strerror}"
        ) from exc
