"""Mooncake's Transfer Engine: a receiver reads the sender's memory over TCP or RDMA.

Peers find each other without a metadata server: each put's metadata says where the sender's engine
listens. **The engine listens on every interface, whatever host it is given, and takes no credentials:
a stranger who reaches its ports can read and write the registered memory.** So it refuses to start on a host
with a public address unless ``allow_public`` is set.

It has no GPU memory registered: a GPU's tensors are copied to the host first. While a read waits for a peer
that is stopped, ``close`` takes up to 5 seconds (``MC_TCP_PROGRESS_TIMEOUT_SEC``).
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from sglang_omni.packages import install_line
from sglang_omni.relay.base import RelayError, RelayReadError, register_relay
from sglang_omni.relay.bind_guard import check_address
from sglang_omni.relay.one_sided.engine import Source
from sglang_omni.relay.one_sided.relay import OneSidedRelay
from sglang_omni.relay.one_sided.slots import HEADER_BYTES, Segment, Slots
from sglang_omni.relay.put_ledger import KEEP_SECONDS

logger = logging.getLogger(__name__)

INSTALL = install_line("mooncake")
LIBRARIES = "apt-get install --no-install-recommends libibverbs1 libnuma1 libcurl4"

_SESSION = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z.-]+):[0-9]{1,5}")
# Reads at once. One that waits for a stopped peer keeps a thread until the engine gives up.
_THREADS = 8
# How long a peer may make no progress: a stopped one holds a thread of ours for as long, and so does close.
_PROGRESS_SECONDS = 5
_AT_ONCE = 0.5


@register_relay("mooncake")
class MooncakeRelay(OneSidedRelay):
    """A relay over Mooncake's Transfer Engine.

    Args:
        engine_id, slot_size_mb, credits, timeout_s, keep_s: See ``OneSidedRelay``.
        host: The address by which peers reach this host. The engine listens on all others as well.
        protocol: ``"tcp"`` or ``"rdma"``.
        rdma_devices: Names of RDMA devices separated by commas; empty for all.
        allow_public: Start though this host has a public address.

    Raises:
        ImportError: The engine, or a library it needs, is not installed; the text has the command that
            installs it.
        ValueError: The host has a public address and ``allow_public`` is not set.
    """

    def __init__(
        self,
        engine_id: str = "relay",
        slot_size_mb: int = 512,
        credits: int = 2,
        host: str = "127.0.0.1",
        protocol: str = "tcp",
        rdma_devices: str = "",
        allow_public: bool = False,
        timeout_s: float = 30.0,
        keep_s: float = KEEP_SECONDS,
    ) -> None:
        if protocol not in ("tcp", "rdma"):
            raise ValueError(f"the mooncake relay's protocol is 'tcp' or 'rdma', not {protocol!r}")
        check_address("mooncake", host, allow_public)
        # It listens there too, whatever it is given.
        check_address("mooncake", "0.0.0.0", allow_public)
        self._options = (host, protocol, rdma_devices)
        super().__init__("mooncake", engine_id, slot_size_mb, credits, timeout_s, keep_s)

    def _make_engine(self) -> MooncakeEngine:
        # The pump is there once the engine is.
        return MooncakeEngine(*self._options, timeout_s=self._timeout, on_read=lambda: self._pump.nudge())


class MooncakeEngine:
    """One Transfer Engine. See ``TransferEngine``.

    ``on_read`` is called in a thread of its own when a read has come to its end.
    """

    has_threads = True

    def __init__(
        self, host: str, protocol: str, rdma_devices: str, timeout_s: float, on_read: Callable[[], None]
    ) -> None:
        os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
        progress = max(1, min(_PROGRESS_SECONDS, int(timeout_s)))
        os.environ.setdefault("MC_TCP_PROGRESS_TIMEOUT_SEC", str(progress))
        self._api = _import_mooncake()
        self._engine = self._api.TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", protocol, rdma_devices) != 0:
            raise RelayError(
                f"mooncake's engine did not start on {host!r} with protocol {protocol!r}: it has written why"
            )
        self._session = (
            f"[{host}]:{self._engine.get_rpc_port()}"
            if ":" in host
            else f"{host}:{self._engine.get_rpc_port()}"
        )
        self._on_read = on_read
        self._registered: dict[int, int] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="mooncake")

    # --- memory ----------------------------------------------------------------------------------

    def register(self, segment: Segment) -> None:
        """See ``TransferEngine``."""
        if self._engine.register_memory(segment.address, segment.nbytes) != 0:
            raise MemoryError(f"mooncake cannot register {segment.nbytes} bytes")
        self._registered[segment.address] = segment.nbytes

    def unregister(self, segment: Segment) -> None:
        """See ``TransferEngine``."""
        del self._registered[segment.address]
        self._engine.unregister_memory(segment.address)

    def address(self) -> dict[str, Any]:
        """See ``TransferEngine``."""
        return {"session": self._session}

    # --- transfers -------------------------------------------------------------------------------

    def read(self, source: Source, into: Slots, *, header_only: bool, notify: bytes) -> MooncakeTransfer:
        """See ``TransferEngine``."""
        match source.peer:
            case {"session": str(session)} if _SESSION.fullmatch(session):
                pass
            case _:
                raise RelayReadError(
                    f"not the metadata of a mooncake put: no session in {source.peer!r:.200}"
                )
        nbytes = HEADER_BYTES if header_only else HEADER_BYTES + source.nbytes
        self._check_local(into, nbytes)
        transfer = partial(self._engine.transfer_sync, session, into.start, source.start)
        status: Future[int] = Future()
        self._threads.submit(self._transfer, transfer, nbytes, notify, status)
        return MooncakeTransfer(session, status)

    def _transfer(
        self, transfer: Callable[..., int], nbytes: int, notify: bytes, status: Future[int]
    ) -> None:
        read = self._api.TransferOpcode.Read
        try:
            status.set_result(_try_twice(partial(transfer, nbytes, read)))
        except Exception as error:  # noqa: BLE001  the caller of the read gets it
            status.set_exception(error)
        self._on_read()
        if notify and not status.exception() and status.result() == 0:
            # The engine needs longer for this than for a small read, so the reader does not wait. It
            # notifies after a transfer only: one of nothing, over TCP and RDMA, is over at once.
            message = self._api.TransferNotify("", notify.decode())
            if _try_twice(partial(transfer, 0, read, message)) != 0:
                logger.warning("mooncake has read a payload and could not notify its sender")

    def knows(self, source: Source) -> bool:
        """See ``TransferEngine``. Another thread makes the connection."""
        return True

    def _check_local(self, into: Slots, nbytes: int) -> None:
        """Over TCP the engine writes wherever a peer wants."""
        segment = into.segment
        if self._registered.get(segment.address) != segment.nbytes or nbytes > into.nbytes:
            raise RelayReadError(
                f"a mooncake read of {nbytes} bytes into memory that is not registered for it"
            )

    def notifications(self) -> list[bytes]:
        """See ``TransferEngine``."""
        return [notify.msg.encode("utf-8", "surrogateescape") for notify in self._engine.get_notifies()]

    def close(self) -> None:
        """See ``TransferEngine``."""
        # A read from a peer that is stopped ends when the engine gives it up.
        self._threads.shutdown(wait=True, cancel_futures=True)
        for address in self._registered:
            self._engine.unregister_memory(address)
        self._registered = {}
        del self._engine


def _try_twice(read: Callable[[], int]) -> int:
    # The engine keeps connections. That the peer has closed one, as it does after a read that it has refused,
    # is found out by the next read, at once.
    began = time.monotonic()
    status = read()
    return read() if status != 0 and time.monotonic() - began < _AT_ONCE else status


class MooncakeTransfer:
    """See ``Transfer``."""

    def __init__(self, session: str, status: Future[int]) -> None:
        self._session = session
        self._status = status

    def is_done(self) -> bool:
        """See ``Transfer``."""
        if not self._status.done():
            return False
        if self._status.result() != 0:
            raise RelayReadError(
                f"mooncake cannot read from {self._session}: the peer is gone or stopped, or its memory is "
                "not what was announced; the engine has written which"
            )
        return True


def _import_mooncake() -> Any:
    try:
        from mooncake import engine
    except ModuleNotFoundError as error:
        raise ImportError(f"the mooncake relay needs its engine: {INSTALL}") from error
    except ImportError as error:
        raise ImportError(f"mooncake's engine lacks a library ({error}): {LIBRARIES}") from error
    return engine
