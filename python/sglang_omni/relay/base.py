"""The relay interface, its capabilities and the registry of backends.

A relay must have ``put_async``, ``get_async``, ``cleanup`` and ``close``. What it can do beyond that
it declares: ``relay_io`` uses a capability only if it is declared, so any class with the four plain
methods works as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from sglang_omni.config.schema.relay_backends import (
    constructor_parameters,
    declare_backend,
    import_relay,
    is_class_path,
)

if TYPE_CHECKING:
    import torch

    from sglang_omni._core import PayloadPlan


# A relay between hosts leaves payloads of up to this size to the control message, about 1.5 times as fast as
# a transfer: no engine and no thread has to wake. Larger ones would still be faster there between processes
# of one host. But a message takes no credit, and a stage that stands still takes thousands of messages
# before its senders wait; and from about 256 KiB on, encryption costs more than a transfer.
INLINE_BYTES = 128 << 10


class RelayError(RuntimeError):
    """A transfer failed."""


class RelayReadError(RelayError):
    """The payload that the metadata announces cannot be read: its sender is gone, or its slot was reused."""


class RelayRevoked(RelayError):
    """The put waited for room, and its request ended."""


class RelayTimeout(RelayError, TimeoutError):
    """A transfer, or room for one, did not come in time; the text names the peer."""


class RelayOperation(Protocol):
    """A transfer under way."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """All a peer needs to read what was put; packs with ``proto.codec``."""
        ...

    async def wait_for_completion(self, timeout: float = 30.0) -> None:
        """Return when the transfer is over; raise RelayTimeout after ``timeout`` seconds."""
        ...


class Relay(ABC):
    """Moves flat uint8 tensors between processes.

    Attributes:
        device: Where received tensors are.
        inline_limit: Payloads of at most this many packed bytes travel inside the control message,
            without the relay; 0 for none.
        packs: The relay has ``put_payload``, which packs straight into its own memory.
        fans_out: The relay also has ``hold_payload`` and ``put_held``, which write a payload for several
            targets once.
        lends: The relay has ``get_payload``, which gives views of its memory.
        lends_tensors: The relay has ``lend_tensors`` and ``borrow_tensors``, by which processes on one GPU
            share what is in its memory.
        crosses_hosts: The peers may be on other hosts.
        cpu_only: It takes a device, and only the CPU.
        trusted: The peers are processes of this host and user, so payloads may name classes that
            are not registered with ``proto.codec``.
    """

    inline_limit: ClassVar[int] = 0
    packs: ClassVar[bool] = False
    fans_out: ClassVar[bool] = False
    lends: ClassVar[bool] = False
    lends_tensors: ClassVar[bool] = False
    crosses_hosts: ClassVar[bool] = True
    cpu_only: ClassVar[bool] = False
    trusted: ClassVar[bool] = False

    device: str = "cpu"

    @abstractmethod
    async def put_async(
        self, tensor: torch.Tensor, request_id: str | None = None, dst_rank: int | None = None
    ) -> RelayOperation:
        """Send a tensor. Waits for room; the operation's metadata goes to the receiver."""

    @abstractmethod
    async def get_async(
        self, metadata: Mapping[str, Any], dest_tensor: torch.Tensor, request_id: str | None = None
    ) -> RelayOperation:
        """Receive into ``dest_tensor`` what ``metadata`` announces."""

    @abstractmethod
    def cleanup(self, request_id: str) -> None:
        """Free what a request has under way and no reader has begun to read, and end its puts that wait.

        Keys of puts are the request's id for a payload, ``{request_id}:stream:{from}:{to}:{chunk_id}`` for a
        chunk, and that with ``:{name}`` for a tensor of its metadata; ids have no colon. Of a relay that does
        not lend, the reader also calls this with the key of what it has read: then only what is under that
        key is meant. See ``is_of``.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything. Tensors that were received stay valid."""

    def usage(self) -> Mapping[str, float]:
        """Numbers for ``/metrics``."""
        return {}

    async def put_payload(
        self, plan: PayloadPlan, request_id: str, edge: str | None = None
    ) -> RelayOperation:
        """Send a packed payload without an intermediate buffer. Only if ``packs`` is set."""
        raise NotImplementedError(f"{type(self).__name__} does not pack")

    async def hold_payload(self, plan: PayloadPlan) -> Any | None:
        """Write a payload that several targets get, and keep it for as long as the returned object exists.

        Does not wait for room: None if there is none now. Only if ``fans_out`` is set.
        """
        raise NotImplementedError(f"{type(self).__name__} does not fan out")

    async def put_held(
        self, held: Any, nbytes: int, request_id: str, edge: str | None = None
    ) -> RelayOperation:
        """Send ``nbytes`` that are held to one target. Waits for that edge's credit; copies nothing."""
        raise NotImplementedError(f"{type(self).__name__} does not fan out")

    async def get_payload(self, metadata: Mapping[str, Any]) -> Any:
        """The payload's bytes as a writable buffer that keeps them alive. Only if ``lends`` is set."""
        raise NotImplementedError(f"{type(self).__name__} does not lend")

    async def lend_tensors(
        self, tensors: Sequence[torch.Tensor], request_id: str, edge: str | None = None
    ) -> dict[str, Any] | None:
        """Lend tensors to a process on the same GPU. Only if ``lends_tensors`` is set.

        They are not copied: what is written to them from now on the reader may see.

        Returns:
            What ``borrow_tensors`` needs. None if the edge has as much on loan as it may have.

        Raises:
            CannotLend: They cannot be lent; the text says why.
        """
        raise NotImplementedError(f"{type(self).__name__} does not lend tensors")

    async def borrow_tensors(self, loan: Any) -> list[torch.Tensor]:
        """The tensors that ``lend_tensors`` was given, in the lender's memory. Only if
        ``lends_tensors`` is set.

        Raises:
            ValueError: The loan is malformed.
            RelayReadError: The tensors cannot be had (any more).
        """
        raise NotImplementedError(f"{type(self).__name__} does not lend tensors")


def is_of(key: str, ended: str) -> bool:
    """True if what is under ``key`` ends with ``ended``, a request's id or a key: see ``Relay.cleanup``."""
    return key == ended or key.partition(":")[0] == ended


class WaitingPut:
    """A put that waits for room.

    Attributes:
        is_revoked: True if its request has ended.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.is_revoked = False

    def check(self) -> None:
        """Raises RelayRevoked if its request has ended."""
        if self.is_revoked:
            raise RelayRevoked(f"{self.key!r} waited for room, and its request has ended")


def credit_bytes(relay: str, slot_size_mb: int, credits: int) -> int:
    """Bytes that an edge of ``relay`` may have under way. Raises ValueError if either number is below 1."""
    if slot_size_mb < 1 or credits < 1:
        raise ValueError(
            f"{relay} needs slot_size_mb and credits of at least 1, not {slot_size_mb} and {credits}"
        )
    return (slot_size_mb << 20) * credits


_RelayClass = TypeVar("_RelayClass", bound=type)

_registry: dict[str, type] = {}
# Backends of this package, imported when first asked for: each may need a library of its own.
BUILT_IN_MODULES = {
    "shm": "sglang_omni.relay.shm.relay",
    "nccl": "sglang_omni.relay.nccl.relay",
    "nixl": "sglang_omni.relay.one_sided.nixl",
    "mooncake": "sglang_omni.relay.one_sided.mooncake",
}


def register_relay(name: str) -> Callable[[_RelayClass], _RelayClass]:
    """Class decorator: make a relay available under ``name``. The last one of a name counts."""

    def register(cls: _RelayClass) -> _RelayClass:
        _registry[name] = cls
        declare_backend(name, cls)
        return cls

    return register


def create_relay(name: str, **options: Any) -> Any:
    """A relay of the backend ``name``.

    Args:
        name: A registered name, or the dotted path of a relay's class.
        **options: ``engine_id``, ``slot_size_mb``, ``credits``, ``device`` and the backend's own. What
            its constructor does not take is dropped, so that one set of options serves every backend.

    Raises:
        ValueError: No backend has that name.
        ImportError: There is no such class.
    """
    if name not in _registry and name in BUILT_IN_MODULES:
        import_module(BUILT_IN_MODULES[name])
    cls = import_relay(name) if is_class_path(name) else _registry.get(name)
    if cls is None:
        known = ", ".join(sorted({*_registry, *BUILT_IN_MODULES}))
        raise ValueError(f"unknown relay {name!r}; available: {known}")
    parameters = constructor_parameters(cls)
    if parameters is not None:
        options = {key: value for key, value in options.items() if key in parameters}
    return cls(**options)
