"""How tensors get from one process to another: the interface, and the backends by name."""

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
