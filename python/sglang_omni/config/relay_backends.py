"""What a plan must know of a relay backend without importing it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

from sglang_omni.config.strict import did_you_mean


class RelayBackend(NamedTuple):
    """What a backend can do. Of one that is not registered here, the most is assumed.

    Attributes:
        crosses_hosts: It reaches processes of other hosts.
        lends_tensors: Processes on one GPU can share tensors over it without a copy.
        options: What its constructor takes beside the fields of RelayConfig; None where that is not known.
    """

    crosses_hosts: bool = True
    lends_tensors: bool = True
    options: frozenset[str] | None = None


_NETWORK_OPTIONS = frozenset({"host", "allow_public", "timeout_s", "keep_s"})

#: The relays of this package, which are imported when they are first created.
BUILT_IN = {
    "shm": RelayBackend(crosses_hosts=False, options=frozenset()),
    "nixl": RelayBackend(lends_tensors=False, options=_NETWORK_OPTIONS),
    "mooncake": RelayBackend(lends_tensors=False, options=_NETWORK_OPTIONS | {"protocol", "rdma_devices"}),
    "nccl": RelayBackend(lends_tensors=False, options=_NETWORK_OPTIONS),
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


def refuse_unknown_options(where: str, given: Iterable[str], backends: Iterable[str]) -> None:
    """Raise ValueError where none of the backends that a stage may use takes an option of this name."""
    options = {name: relay_backend(name).options for name in sorted(set(backends))}
    taken = [names for names in options.values() if names is not None]
    if len(taken) < len(options):
        return
    for option in given:
        if any(option in names for names in taken):
            continue
        others = [name for name, known in _backends.items() if known.options and option in known.options]
        hint = (
            f"; {' and '.join(others)} would" if others else did_you_mean(option, frozenset().union(*taken))
        )
        raise ValueError(f"{where}: none of the stage's relays, {', '.join(options)}, takes {option!r}{hint}")


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
