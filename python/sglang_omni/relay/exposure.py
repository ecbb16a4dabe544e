"""Who can reach what a relay listens on: engines that know no credentials are not for strangers."""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path

_IPv4OrIPv6 = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address or name of this host's loopback device."""
    return _resolve(host).is_loopback


def check_address(kind: str, host: str, allow_public: bool) -> None:
    """Refuse to listen on ``host`` where anybody could connect.

    Raises:
        ValueError: It is a public address, or every address of a host that has one, and ``allow_public``
            is not set; or it is no address.
    """
    address = _resolve(host)
    public = [address] if address.is_global else []
    if address.is_unspecified:
        public = [own for own in own_addresses() if own.is_global]
    if public and not allow_public:
        raise ValueError(
            f"the {kind} relay refuses to listen on {host!r}: {public[0]} is a public address, and whoever "
            "reaches the relay's ports can read and write its memory, for its engine knows no credentials. "
            "Name a private address as its host or, where a firewall keeps strangers out, set "
            "allow_public=True"
        )


def own_addresses() -> list[_IPv4OrIPv6]:
    """All addresses of this host's devices."""
    found: list[_IPv4OrIPv6] = [
        ipaddress.IPv6Address(bytes.fromhex(line.split()[0])) for line in _lines("/proc/net/if_inet6")
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, device in socket.if_nameindex():
            address = _address_of(probe, device)
            if address is not None:
                found.append(address)
    return found


def _address_of(probe: socket.socket, device: str) -> ipaddress.IPv4Address | None:
    import fcntl

    siocgifaddr = 0x8915
    try:
        reply = fcntl.ioctl(probe.fileno(), siocgifaddr, struct.pack("256s", device[:15].encode()))
    except OSError:  # It has no IPv4 address.
        return None
    return ipaddress.IPv4Address(reply[20:24])


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:  # A kernel without IPv6.
        return []


def _resolve(host: str) -> _IPv4OrIPv6:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0])
    except OSError as error:
        raise ValueError(f"no such host: {host!r} ({error})") from error
