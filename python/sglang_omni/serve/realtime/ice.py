"""The servers with whose help a call is reached from other networks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# aiortc takes no address of IPv6 here.
_URL = re.compile(r"(?P<scheme>stun|turns?):[^\s:/?@\[\]]+(:\d{1,5})?(\?transport=(?P<transport>\w+))?")
_TRANSPORTS = {"stun": (None,), "turn": (None, "udp", "tcp"), "turns": (None, "tcp")}


@dataclass(frozen=True)
class IceServers:
    """At most one STUN server, which knows a replica's public address, and one TURN server, which relays.

    Attributes:
        urls: As in RFC 7064 and RFC 7065.
        username: Shown to the TURN server; None without one.
        password: Goes with it.
    """

    urls: tuple[str, ...] = ()
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def turn(self) -> str | None:
        return next((url for url in self.urls if is_turn(url)), None)


NO_ICE_SERVERS = IceServers()


def is_turn(url: str) -> bool:
    return url.startswith("turn")


def check_url(url: str) -> str:
    """``url``, if aiortc can use it.

    Raises:
        ValueError: It cannot.
    """
    match = _URL.fullmatch(url)
    if match is None or match["transport"] not in _TRANSPORTS[match["scheme"]]:
        raise ValueError(
            f"{url!r} is no URL like stun:HOST:PORT, turn:HOST:PORT?transport=udp (or tcp) or turns:HOST:PORT"
        )
    return url
