"""NIXL: a receiver reads the sender's memory over whatever UCX finds between them.

What a peer needs is in every put's metadata: the agent's name and its 300 to 500 bytes of own metadata.
Data and notifications are neither encrypted nor authenticated, and UCX listens on the devices in
``UCX_NET_DEVICES``: this is for networks of one's own.

It has no GPU memory registered: a GPU's tensors are copied to the host first.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import uuid
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sglang_omni.packages import install_line
from sglang_omni.relay.base import RelayError, RelayReadError, register_relay
from sglang_omni.relay.bind_guard import check_address, device_of, is_loopback
from sglang_omni.relay.env_override import setting
from sglang_omni.relay.one_sided.engine import Source
from sglang_omni.relay.one_sided.relay import OneSidedRelay
from sglang_omni.relay.one_sided.renewal import RenewedEngine
from sglang_omni.relay.one_sided.slots import HEADER_BYTES, Segment, Slots
from sglang_omni.relay.put_ledger import KEEP_SECONDS

logger = logging.getLogger(__name__)

INSTALL = install_line("nixl")

# The package for each version of CUDA has a name of its own; neither needs a GPU.
_MODULES = ("nixl_cu13._api", "nixl_cu12._api")
# A peer has one pool, and memory of its own for payloads that do not fit.
_PREPARED_SEGMENTS = 8
_RDMA = Path("/sys/class/infiniband")


@register_relay("nixl")
class NixlRelay(OneSidedRelay):
    """A relay over NIXL's UCX backend.

    Args:
        engine_id, slot_size_mb, credits, timeout_s, keep_s: See ``OneSidedRelay``.
        host: The address by which peers reach this host. UCX is kept to the device that has it, and to RDMA
            devices if it is not the loopback one, unless ``UCX_NET_DEVICES`` says otherwise.
        allow_public: Start though ``host`` is a public address.

    Raises:
        ImportError: NIXL is not installed; the text has the command that installs it.
        ValueError: ``host`` is no address of this host, or public and ``allow_public`` is not set.
    """

    def __init__(
        self,
        engine_id: str = "relay",
        slot_size_mb: int = 512,
        credits: int = 2,
        host: str = "127.0.0.1",
        allow_public: bool = False,
        timeout_s: float = 30.0,
        keep_s: float = KEEP_SECONDS,
    ) -> None:
        check_address("nixl", host, allow_public)
        self._devices = os.environ.get("UCX_NET_DEVICES") or _devices(host)
        self._served_s = keep_s + timeout_s
        super().__init__("nixl", engine_id, slot_size_mb, credits, timeout_s, keep_s)

    def _make_engine(self) -> RenewedEngine:
        return RenewedEngine(self.name, lambda: NixlEngine(self.engine_id, self._devices), self._served_s)


class _Prepared(NamedTuple):
    """Descriptors that NIXL has prepared, of all slots of a segment."""

    slots: Any
    headers: Any


class _Remote:
    """An agent of another process as this one knows it."""

    def __init__(self, metadata: bytes) -> None:
        self.metadata = metadata
        self.prepared: OrderedDict[tuple[int, int, int], _Prepared] = OrderedDict()


class NixlEngine:
    """One NIXL agent. See ``renewal.Renewable``."""

    has_threads = False

    def __init__(self, name: str, devices: str) -> None:
        api = _import_nixl()
        # The binding's errors have no class in common.
        self._errors = tuple(
            value
            for value in vars(api.nixlBind).values()
            if isinstance(value, type) and issubclass(value, Exception)
        )
        # A process that comes back under its name is another agent: what was known of the first is void.
        self._name = f"{name}-{uuid.uuid4().hex}"
        config = api.nixl_agent_config(
            enable_prog_thread=False,
            backends=["UCX"],
            sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
        )
        try:
            with setting("UCX_NET_DEVICES", devices):
                self._agent = api.nixl_agent(self._name, config)
        except self._errors as error:
            raise RelayError(f"nixl cannot make an agent, and has written why: {error}") from error
        self._registered: dict[int, tuple[Any, _Prepared]] = {}
        self._remotes: dict[str, _Remote] = {}
        self._unfinished: set[Any] = set()
        self._address: dict[str, Any] | None = None

    # --- memory ----------------------------------------------------------------------------------

    def register(self, segment: Segment) -> None:
        """See ``TransferEngine``."""
        try:
            memory = self._agent.register_memory([(segment.address, segment.nbytes, 0, "")], "DRAM")
        except self._errors as error:
            raise MemoryError(f"nixl cannot register {segment.nbytes} bytes: {error}") from error
        place = (segment.address, segment.slot_bytes, segment.slots)
        self._registered[segment.address] = (memory, self._prepare("NIXL_INIT_AGENT", place))
        self._address = None

    def unregister(self, segment: Segment) -> None:
        """See ``TransferEngine``."""
        memory, prepared = self._registered.pop(segment.address)
        self._release(prepared)
        try:
            self._agent.deregister_memory(memory)
        except self._errors as error:
            logger.warning("nixl keeps %d bytes registered: %s", segment.nbytes, error)
        self._address = None

    def _prepare(self, agent: str, place: tuple[int, int, int]) -> _Prepared:
        address, slot_bytes, slots = place
        rows = ((address, slot_bytes, 0, slot_bytes, slots), (address, HEADER_BYTES, 0, slot_bytes, slots))
        return _Prepared(
            *(self._agent.prep_xfer_dlist(agent, np.array([row], np.uint64), "DRAM") for row in rows)
        )

    def _release(self, prepared: _Prepared) -> None:
        for descriptors in prepared:
            self._agent.release_dlist_handle(descriptors)

    def address(self) -> dict[str, Any]:
        """See ``TransferEngine``."""
        address = self._address
        if address is None:
            address = {"agent": self._name, "metadata": self._agent.get_agent_metadata()}
            self._address = address
        return address

    # --- transfers -------------------------------------------------------------------------------

    def read(self, source: Source, into: Slots, *, header_only: bool, notify: bytes) -> NixlTransfer:
        """See ``TransferEngine``."""
        match source.peer:
            case {"agent": str(name), "metadata": bytes(metadata)}:
                pass
            case _:
                raise RelayReadError("not the metadata of a nixl put: it names no agent")
        count = 1 if header_only else into.count
        here = np.arange(into.first, into.first + count, dtype=np.int32)
        there = np.arange(source.slots[0], source.slots[0] + count, dtype=np.int32)
        part = 1 if header_only else 0
        local = self._registered[into.segment.address][1][part]
        try:
            remote = self._remote(name, metadata, source.segment)[part]
            handle = self._agent.make_prepped_xfer("READ", local, here, remote, there, notify)
            self._unfinished.add(handle)
            status = self._agent.transfer(handle)
        except self._errors as error:
            self._forget(name)
            raise RelayReadError(f"nixl cannot read from {name!r}: {error}") from error
        return NixlTransfer(self, name, handle, status)

    def knows(self, source: Source) -> bool:
        """See ``TransferEngine``."""
        match source.peer:
            case {"agent": str(name), "metadata": bytes(metadata)} if remote := self._remotes.get(name):
                return remote.metadata == metadata
        return False

    def status(self, agent: str, handle: Any) -> str:
        """How a transfer from ``agent`` stands: "PROC" or "DONE". Raises RelayReadError if it failed."""
        try:
            status = self._agent.check_xfer_state(handle)
        except self._errors as error:
            self.finish(handle)
            self._forget(agent)
            raise RelayReadError(f"nixl has lost {agent!r} in the middle of a read: {error}") from error
        if status == "ERR":
            self.finish(handle)
            raise RelayReadError(f"nixl has failed to read from {agent!r}")
        return status

    @property
    def is_reading(self) -> bool:
        """See ``renewal.Renewable``."""
        return bool(self._unfinished)

    def finish(self, handle: Any) -> None:
        """A transfer is over."""
        self._unfinished.discard(handle)
        self._agent.release_xfer_handle(handle)

    def _remote(self, name: str, metadata: bytes, place: tuple[int, int, int]) -> _Prepared:
        remote = self._remotes.get(name)
        if remote is None or remote.metadata != metadata:
            self._load(name, metadata)
            remote = self._remotes[name]
        prepared = remote.prepared.get(place)
        if prepared is None:
            prepared = remote.prepared[place] = self._prepare(name, place)
            if len(remote.prepared) > _PREPARED_SEGMENTS:
                self._release(remote.prepared.popitem(last=False)[1])
        return prepared

    def _load(self, name: str, metadata: bytes) -> None:
        """Get to know an agent, or what memory it has registered since."""
        announced = self._agent.add_remote_agent(metadata)
        announced = announced.decode() if isinstance(announced, bytes) else announced
        if announced != name:
            self._forget(announced)
            raise RelayReadError(f"nixl metadata of {announced!r} was announced as that of {name!r}")
        known = self._remotes.get(name)
        for prepared in known.prepared.values() if known is not None else ():
            self._release(prepared)
        self._remotes[name] = _Remote(metadata)

    def _forget(self, name: str) -> None:
        """Disconnect from an agent that is gone; if it is not, the next read connects again."""
        remote = self._remotes.pop(name, None)
        for prepared in remote.prepared.values() if remote is not None else ():
            self._release(prepared)
        with contextlib.suppress(*self._errors):
            self._agent.remove_remote_agent(name)

    def notifications(self) -> list[bytes]:
        """See ``TransferEngine``."""
        try:
            notifications = self._agent.get_new_notifs()
        except self._errors as error:
            logger.warning("nixl: a peer was lost: %s", error)
            return []
        return [message for messages in notifications.values() for message in messages]

    def close(self) -> None:
        """See ``TransferEngine``."""
        for handle in list(self._unfinished):
            # Refused for a transfer in flight, which ends with the agent.
            with contextlib.suppress(*self._errors):
                self.finish(handle)
        for name in list(self._remotes):
            self._forget(name)
        for memory, prepared in self._registered.values():
            self._release(prepared)
            with contextlib.suppress(*self._errors):
                self._agent.deregister_memory(memory)
        self._registered = {}
        del self._agent


class NixlTransfer:
    """See ``Transfer``."""

    def __init__(self, engine: NixlEngine, agent: str, handle: Any, status: str) -> None:
        self._engine = engine
        self._agent = agent
        self._handle = handle
        self._status = status

    def is_done(self) -> bool:
        """See ``Transfer``."""
        if self._status != "DONE":
            self._status = self._engine.status(self._agent, self._handle)
        if self._status != "DONE":
            return False
        self._engine.finish(self._handle)
        return True


def _import_nixl() -> Any:
    """NIXL's module, which reads these settings when it is first imported."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    # By itself UCX logs to stdout, in the middle of what a program prints there.
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    # By default UCX waits for connect() in the call that reads; and it ends the process if a peer takes a
    # connection, drops it and refuses the next.
    os.environ.setdefault("UCX_TCP_CONN_NB", "y")
    if not _rdma_ports():
        # Without RDMA its modules find nothing, and one of them brings a library that crashes at exit.
        os.environ.setdefault("UCX_MODULES", "^ib")
    for name in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ImportError(f"the nixl relay needs NIXL: {INSTALL}")


def _devices(host: str) -> str:
    """The devices that UCX must keep to, and so listens on; by default it takes every device."""
    try:
        return device_of("127.0.0.1") if is_loopback(host) else ",".join([device_of(host), *_rdma_ports()])
    except ValueError as error:
        raise ValueError(
            f"the nixl relay does not know the device by which peers reach it: {error}. Name an address of "
            "this host, or set UCX_NET_DEVICES"
        ) from error


def _rdma_ports() -> list[str]:
    """All RDMA devices' ports by UCX's names, as "mlx5_0:1"."""
    return sorted(f"{port.parent.parent.name}:{port.name}" for port in _RDMA.glob("*/ports/*"))
