"""Abilities and options of relay backends, which a plan needs without importing the relays."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from sglang_omni.config.imports import import_string
from sglang_omni.config.nearest import did_you_mean


class RelayBackend(NamedTuple):
    """What a backend can do.

    Attributes:
        crosses_hosts: True if it reaches processes of other hosts.
        lends_tensors: True if processes on one GPU can share tensors over it without a copy.
        options: Arguments of its constructor other than the fields of RelayConfig; None if it takes any.
        settings: The fields of RelayConfig that it reads; None if it takes any.
    """

    crosses_hosts: bool = True
    lends_tensors: bool = False
    options: frozenset[str] | None = None
    settings: frozenset[str] | None = None


_NETWORK_OPTIONS = frozenset({"host", "allow_public", "timeout_s", "keep_s"})
_CREDIT = frozenset({"slot_size_mb", "credits"})

#: The relays of this package, declared here because their modules, which need torch, are imported only when
#: they are first created. A test compares each with its class.
BUILT_IN = {
    "shm": RelayBackend(crosses_hosts=False, lends_tensors=True, options=frozenset(), settings=_CREDIT),
    "nixl": RelayBackend(options=_NETWORK_OPTIONS, settings=_CREDIT),
    "mooncake": RelayBackend(options=_NETWORK_OPTIONS | {"protocol", "rdma_devices"}, settings=_CREDIT),
    "nccl": RelayBackend(options=_NETWORK_OPTIONS, settings=_CREDIT | {"device"}),
}

# The fields of RelayConfig that every relay is offered.
_SETTINGS = frozenset({"slot_size_mb", "credits", "rank", "world_size", "device"})

# Required of every relay.
_METHODS = ("put_async", "get_async", "cleanup", "close")

_backends = dict(BUILT_IN)


def declare_backend(name: str, relay: type) -> None:
    """Let ``name`` stand for this class, in place of any other of that name."""
    _backends[name] = _describe(relay)


def relay_backend(name: str) -> RelayBackend:
    """The abilities of the backend ``name``. If it is a dotted path, the class is imported.

    Raises:
        ValueError: There is no such backend.
        ImportError: There is no such class.
    """
    if is_class_path(name):
        return _describe(import_relay(name))
    refuse_unknown_backend("relay", name)
    return _backends[name]


def is_class_path(name: str) -> bool:
    """True if a backend's name is the dotted path of a relay's class, which needs no registration."""
    return "." in name


def import_relay(path: str) -> type:
    """The class at a dotted path. Raises ImportError if there is none, ValueError if it is not a relay."""
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
    """Names of the constructor's arguments; None if it takes any."""
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


def refuse_unknown_options(where: str, given: Collection[str], backends: Iterable[str]) -> None:
    """Raise ValueError for an option that none of the backends takes.

    Args:
        where: The stage and field, for the error's text.
        given: Names of options.
        backends: The backends that the stage may use.
    """
    options = {name: relay_backend(name).options for name in sorted(set(backends))} if given else {}
    for option, taken in _not_among(options, given):
        others = [name for name, known in _backends.items() if known.options and option in known.options]
        hint = f"; {' and '.join(others)} would" if others else did_you_mean(option, taken)
        raise ValueError(f"{where}: none of the stage's relays, {', '.join(options)}, takes {option!r}{hint}")


def refuse_unread_settings(where: str, given: Iterable[str], backends: Iterable[str]) -> None:
    """Raise ValueError for a field of RelayConfig that none of the backends reads.

    Args:
        where: The stage and field, for the error's text.
        given: Names of fields that are set.
        backends: The backends that the stage uses.
    """
    settings = {name: relay_backend(name).settings for name in sorted(set(backends))}
    for field, _ in _not_among(settings, given):
        others = [name for name, known in _backends.items() if known.settings and field in known.settings]
        others.append("a relay of your own whose constructor takes it")
        raise ValueError(
            f"{where}.{field}: none of the stage's relays, {', '.join(settings)}, reads it; leave it out "
            f"({' and '.join(others)} would)"
        )


def _not_among(
    of_backends: Mapping[str, frozenset[str] | None], given: Iterable[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """Each given name that no backend takes, with all that are taken. Nothing if a backend takes any name."""
    known = [names for names in of_backends.values() if names is not None]
    taken = frozenset().union(*known)
    if len(known) == len(of_backends):
        yield from ((name, taken) for name in sorted(given) if name not in taken)


def refuse_unknown_backend(where: str, name: str) -> None:
    """Raise ValueError if ``name`` is neither a known backend nor a dotted path."""
    if name not in _backends and not is_class_path(name):
        raise ValueError(
            f"{where}: there is no relay backend {name!r}{did_you_mean(name.lower(), _backends)} "
            "(one of your own is named by the dotted path of its class, as in my_relays.MyRelay)"
        )
