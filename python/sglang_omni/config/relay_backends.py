"""What a plan must know of a relay backend: of this package's own without importing them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import NamedTuple

from sglang_omni.config.imports import import_string
from sglang_omni.config.nearest import did_you_mean


class RelayBackend(NamedTuple):
    """What a backend can do.

    Attributes:
        crosses_hosts: It reaches processes of other hosts.
        lends_tensors: Processes on one GPU can share tensors over it without a copy.
        options: What its constructor takes beside the fields of RelayConfig; None where it takes anything.
        settings: The fields of RelayConfig that it reads; None where it takes anything.
    """

    crosses_hosts: bool = True
    lends_tensors: bool = False
    options: frozenset[str] | None = None
    settings: frozenset[str] | None = None


_NETWORK_OPTIONS = frozenset({"host", "allow_public", "timeout_s", "keep_s"})
_CREDIT = frozenset({"slot_size_mb", "credits"})

#: The relays of this package, which are imported when they are first created.
BUILT_IN = {
    "shm": RelayBackend(crosses_hosts=False, lends_tensors=True, options=frozenset(), settings=_CREDIT),
    "nixl": RelayBackend(options=_NETWORK_OPTIONS, settings=_CREDIT),
    "mooncake": RelayBackend(options=_NETWORK_OPTIONS | {"protocol", "rdma_devices"}, settings=_CREDIT),
    "nccl": RelayBackend(options=_NETWORK_OPTIONS, settings=_CREDIT | {"device"}),
}

# The fields of RelayConfig that every relay is told and may take.
_SETTINGS = frozenset({"slot_size_mb", "credits", "rank", "world_size", "device"})

# What a relay has to have.
_METHODS = ("put_async", "get_async", "cleanup", "close")

_backends = dict(BUILT_IN)


def declare_backend(name: str, relay: type) -> None:
    """Have ``name`` stand for this class. The last one of a name counts."""
    _backends[name] = _describe(relay)


def relay_backend(name: str) -> RelayBackend:
    """What the backend called ``name`` can do. A class that is named by its dotted path is imported.

    Raises:
        ValueError: There is no such backend.
        ImportError: There is no such class.
    """
    if is_class_path(name):
        return _describe(import_relay(name))
    refuse_unknown_backend("relay", name)
    return _backends[name]


def is_class_path(name: str) -> bool:
    """Whether a backend's name is the dotted path of a relay's class, which needs no registration."""
    return "." in name


def import_relay(path: str) -> type:
    """The class at a dotted path. Raises ImportError where there is none, ValueError where it is no relay."""
    try:
        found = import_string(path)
    except ImportError as exc:
        raise ImportError(f"relay backend: {exc}") from exc
    if not isinstance(found, type):
        raise ValueError(f"relay backend {path!r} is a {type(found).__name__}, not a class")
    if lacking := [name for name in _METHODS if not hasattr(found, name)]:
        raise ValueError(
            f"relay backend {path!r} has no {', '.join(lacking)}; sglang_omni.relay.Relay says what they do"
        )
    return found


def constructor_parameters(relay: type) -> frozenset[str] | None:
    """What the constructor takes; None where it takes anything."""
    parameters = inspect.signature(relay).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def _describe(relay: type) -> RelayBackend:
    parameters = constructor_parameters(relay)
    read = _SETTINGS - {"device"} if getattr(relay, "cpu_only", False) else _SETTINGS
    return RelayBackend(
        crosses_hosts=getattr(relay, "crosses_hosts", True),
        lends_tensors=getattr(relay, "lends_tensors", False),
        options=None if parameters is None else parameters - _SETTINGS - {"engine_id"},
        settings=None if parameters is None else parameters & read,
    )


def network_backends() -> list[str]:
    """Names of the known backends that reach other hosts."""
    return sorted(name for name, backend in _backends.items() if backend.crosses_hosts)


def refuse_unknown_options(where: str, given: Iterable[str], backends: Iterable[str]) -> None:
    """Raise ValueError where none of the backends that a stage may use takes an option of this name."""
    given = list(given)
    if not given:
        return
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


def refuse_unread_settings(where: str, given: Iterable[str], backends: Iterable[str]) -> None:
    """Raise ValueError where none of the backends that a stage uses reads a field that is given."""
    settings = {name: relay_backend(name).settings for name in sorted(set(backends))}
    read = [names for names in settings.values() if names is not None]
    if len(read) < len(settings):
        return
    for field in sorted(given):
        if any(field in names for names in read):
            continue
        others = [name for name, known in _backends.items() if known.settings and field in known.settings]
        others.append("a relay of your own whose constructor takes it")
        raise ValueError(
            f"{where}.{field}: none of the stage's relays, {', '.join(settings)}, reads it; leave it out "
            f"({' and '.join(others)} would)"
        )


def refuse_unknown_backend(where: str, name: str) -> None:
    """Raise ValueError where nothing is known under this name, which is no dotted path either."""
    if name not in _backends and not is_class_path(name):
        raise ValueError(
            f"{where}: there is no relay backend {name!r}{did_you_mean(name.lower(), _backends)} "
            "(one of your own is named by the dotted path of its class, as in my_relays.MyRelay)"
        )
