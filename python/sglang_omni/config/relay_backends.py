"""What a plan must know of a relay backend without importing it."""

from __future__ import annotations

import difflib
from typing import NamedTuple


class RelayBackend(NamedTuple):
    """What a backend can do. Of one that is not registered here, the most is assumed.

    Attributes:
        crosses_hosts: It reaches processes of other hosts.
        lends_tensors: Processes on one GPU can share tensors over it without a copy.
    """

    crosses_hosts: bool = True
    lends_tensors: bool = True


#: Backends of this package, as their classes say.
BUILT_IN = {
    "shm": RelayBackend(crosses_hosts=False, lends_tensors=True),
    "nixl": RelayBackend(lends_tensors=False),
    "mooncake": RelayBackend(lends_tensors=False),
    "nccl": RelayBackend(lends_tensors=False),
}
_backends = dict(BUILT_IN)


def declare_backend(name: str, backend: RelayBackend) -> None:
    """Say what the backend called ``name`` can do. The last word on a name counts."""
    _backends[name] = backend


def relay_backend(name: str) -> RelayBackend:
    """What the backend called ``name`` can do."""
    return _backends.get(name, RelayBackend())


def network_backends() -> list[str]:
    """Names of the known backends that reach other hosts."""
    return sorted(name for name, backend in _backends.items() if backend.crosses_hosts)


def refuse_misspelt_backend(where: str, name: str) -> None:
    """Raise ValueError where ``name`` is nearly, but not quite, the name of a known backend.

    Any other name may be that of a relay which a stage's module registers in the stage's own process.
    """
    close = difflib.get_close_matches(name.lower(), _backends, n=1, cutoff=0.7)
    if close and name not in _backends:
        raise ValueError(
            f"{where}: there is no relay backend {name!r}; did you mean {close[0]!r}? One of your own "
            "by that name must be registered (sglang_omni.relay.register_relay) before the config is checked"
        )
