"""Relays over engines that read a peer's registered memory: NIXL and Mooncake."""
