"""Refuses to let relays listen on public addresses: their engines know no credentials."""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_IPv4OrIPv6 = ipaddress.IPv4Address | ipaddress.IPv6Address
_IFREQ_BYTES = 40


def is_loopback(host: str) -> bool:
    """True if ``host`` is an address or name of this host's loopback device."""
    return _resolve(host).is_loopback


def check_address(kind: str, host: str, allow_public: bool) -> None:
    """Refuse to listen on an address that is public.

    Raises:
        ValueError: ``host`` is a public address, or stands for all addresses of a host that has a public one,
            and ``allow_public`` is not set; or it is no address.
    """
    address = _resolve(host)
    public = [address] if address.is_global else []
    if address.is_unspecified:
        public = [own for own in own_addresses() if own.is_global]
    if public and not allow_public:
        raise ValueError(
            f"the {kind} relay refuses to listen on {host!r}: {public[0]} is a public address, and a "
            "stranger who reaches the relay's ports can read and write its memory: its engine knows no "
            "credentials. Name a private address as its host or, if a firewall keeps strangers out, set "
            "allow_public=True"
        )


def device_of(host: str) -> str:
    """The name of the network device that has the address ``host``.

    Raises:
        ValueError: None has it.
    """
    address = _resolve(host)
    for own, device in _devices():
        if own == address:
            return device
    there_are = ", ".join(f"{own} ({device})" for own, device in _devices())
    raise ValueError(f"{host!r} is the address of no network device here; there are {there_are}")


def own_addresses() -> list[_IPv4OrIPv6]:
    """All addresses of this host's devices."""
    return [address for address, _ in _devices()]


def _devices() -> list[tuple[_IPv4OrIPv6, str]]:
    found: list[tuple[_IPv4OrIPv6, str]] = []
    for line in _lines("/proc/net/if_inet6"):
        digits, *_, device = line.split()
        found.append((ipaddress.IPv6Address(bytes.fromhex(digits)), device))
    # Each is a device's name in 16 bytes and a socket address; see netdevice(7).
    entries, siocgifconf = ctypes.create_string_buffer(1024 * _IFREQ_BYTES), 0x8912
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        where = struct.pack("iP", len(entries), ctypes.addressof(entries))
        filled, _ = struct.unpack("iP", fcntl.ioctl(probe.fileno(), siocgifconf, where))
    for start in range(0, filled, _IFREQ_BYTES):
        entry = entries.raw[start : start + _IFREQ_BYTES]
        # A second address of a device may have a label after a colon.
        device = entry[:16].split(b"\0")[0].split(b":")[0].decode()
        found.append((ipaddress.IPv4Address(entry[20:24]), device))
    return found


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
