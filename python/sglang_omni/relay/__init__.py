"""Relays move tensors from one process to another: the interface, and a room for each kind of backend."""

from sglang_omni.relay.base import (
    Relay,
    RelayError,
    RelayOperation,
    RelayReadError,
    RelayTimeout,
    create_relay,
    register_relay,
)

__all__ = [
    "Relay",
    "RelayError",
    "RelayOperation",
    "RelayReadError",
    "RelayTimeout",
    "create_relay",
    "register_relay",
]
