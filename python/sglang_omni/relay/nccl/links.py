"""Connections by which a receiver asks for payloads, each with the process group that brings them.

The protocol, in frames of fixed size: the receiver says hello with the token that its sender has
announced, and is sent how the group is made. Then it asks for one ticket after another; each is
granted or refused, sent through the group, and acknowledged. A side that is gone closes the connection.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import torch

from sglang_omni.relay.base import RelayError, RelayReadError, RelayTimeout
from sglang_omni.relay.nccl.groups import RECEIVER, SENDER, PairGroup, gpu_of
from sglang_omni.relay.nccl.rendezvous import Rendezvous, receive_exactly
from sglang_omni.relay.put_ledger import PutLedger

logger = logging.getLogger(__name__)

# Token, GPU.
_HELLO = struct.Struct("<8s16s16s")
# True if by NCCL.
_WELCOME = struct.Struct("<?")
# Ticket, size.
_REQUEST = struct.Struct("<QQ")
_GRANTED, _REFUSED, _DONE = b"\x01", b"\x00", b"\x02"
_MAGIC = b"sglomni\x03"
_HELLO_SECONDS = 5.0
# How long a group's two sides may take to find each other.
_MEET_SECONDS = 5.0
_JOIN_SECONDS = 1.0

# A thread must not be inside of a process group when the interpreter ends: that aborts the process.
_threads: set[threading.Thread] = set()


@atexit.register
def _join() -> None:
    # Each is in a call that has a deadline.
    for thread in list(_threads):
        thread.join()


def _start(work: Callable[[], None], name: str) -> threading.Thread:
    def run() -> None:
        try:
            work()
        finally:
            _threads.discard(thread)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


class Endpoint:
    """One relay, as its connections see it."""

    def __init__(self, name: str, host: str, device: str, timeout: float) -> None:
        self.name = name
        self.host = host
        self.device = device
        self.gpu = gpu_of(device)
        self.timeout = timeout
        self.meeting = min(timeout, _MEET_SECONDS)

    def meet(self, connection: socket.socket, rank: int, by_nccl: bool) -> PairGroup:
        """The group for what is asked for over a connection; the other side makes its own now."""
        connection.settimeout(self.meeting)
        device = self.device if by_nccl else None
        return PairGroup(Rendezvous(connection), rank, self.host, device, self.meeting)

    def goes_by_nccl(self, other_gpu: bytes) -> bool:
        """True if NCCL connects the two: it needs a GPU on either side, and not the same."""
        return any(self.gpu) and any(other_gpu) and self.gpu != other_gpu


class Offer(NamedTuple):
    """What a sender has announced: its address and token, and the payload's ticket and size."""

    sender: tuple[str, int, bytes]
    ticket: int
    nbytes: int


class PairServer:
    """Sends what is asked for.

    A thread accepts connections, and each of those has one of its own, so that none waits for another.
    """

    def __init__(self, endpoint: Endpoint, ledger: PutLedger) -> None:
        self._endpoint = endpoint
        self._ledger = ledger
        self.token = secrets.token_bytes(16)
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        self._listener = socket.create_server((endpoint.host, 0), family=family, backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = False
        _start(self._accept, f"{endpoint.name}: accept")

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
            connections = [self._listener, *self._connections]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                logger.exception("%s cannot accept a connection", self._endpoint.name)
                time.sleep(0.1)  # Most likely there are no file descriptors left.
                continue
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._connections.add(connection)
            _start(partial(self._serve, connection, address), f"{self._endpoint.name}: send")

    def _serve(self, connection: socket.socket, address: object) -> None:
        try:
            with connection:
                gpu = self._greeted(connection)
                if gpu is None:
                    logger.warning("%s: %s connected and is no peer", self._endpoint.name, address)
                    return
                self._send_all(connection, gpu)
        except (OSError, RuntimeError) as error:
            if not self._closed:
                logger.warning("%s: lost the receiver at %s: %s", self._endpoint.name, address, error)
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _greeted(self, connection: socket.socket) -> bytes | None:
        """The peer's GPU; None if the connection is not a peer's."""
        connection.settimeout(_HELLO_SECONDS)
        try:
            hello = receive_exactly(connection, _HELLO.size)
        except OSError:
            return None
        if hello is None:
            return None
        magic, token, gpu = _HELLO.unpack(hello)
        return gpu if magic == _MAGIC and secrets.compare_digest(token, self.token) else None

    def _send_all(self, connection: socket.socket, gpu: bytes) -> None:
        endpoint = self._endpoint
        by_nccl = endpoint.goes_by_nccl(gpu)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.sendall(_WELCOME.pack(by_nccl))
        group = endpoint.meet(connection, SENDER, by_nccl)
        try:
            while True:
                connection.settimeout(None)
                request = receive_exactly(connection, _REQUEST.size)
                if request is None:
                    return
                connection.settimeout(endpoint.timeout)
                self._answer(connection, group, *_REQUEST.unpack(request))
        finally:
            group.close()

    def _answer(self, connection: socket.socket, group: PairGroup, number: int, nbytes: int) -> None:
        ticket = self._ledger.ticket(number)
        packed: torch.Tensor | None = ticket.source if ticket is not None else None
        if packed is None or packed.nbytes != nbytes:
            connection.sendall(_REFUSED)
            return
        connection.sendall(_GRANTED)
        sending = group.begin_send(packed.to(group.device)) if nbytes else None
        if receive_exactly(connection, 1) != _DONE:
            raise ConnectionError("it did not acknowledge a payload")
        del sending
        self._ledger.finish(number)


class _Job(NamedTuple):
    offer: Offer
    deadline: float
    future: Future[torch.Tensor]


class Link:
    """Receives from one sender, in the order of the calls. Its thread ends when the sender is gone."""

    def __init__(self, endpoint: Endpoint, sender: tuple[str, int, bytes]) -> None:
        self.is_closed = False
        self._error: Exception | None = None
        self._endpoint = endpoint
        self._sender = sender
        self._lock = threading.Lock()
        self._jobs: deque[_Job] = deque()
        self._connection: socket.socket | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = _start(self._run, f"{endpoint.name}: receive")

    def get(self, offer: Offer) -> Future[torch.Tensor]:
        """Ask for a payload. The future fails with RelayReadError, RelayTimeout or RelayError.

        Cancelled, the payload is received all the same, into memory that is then dropped.
        """
        job = _Job(offer, time.monotonic() + self._endpoint.timeout, Future())
        with self._lock:
            if not self.is_closed:
                self._jobs.append(job)
                os.eventfd_write(self._wake, 1)
                return job.future
        assert self._error is not None
        _fail(job, self._error)
        return job.future

    def close(self) -> None:
        """Fail what was asked for."""
        self._end(RelayError(f"{self._endpoint.name} was closed"))
        self._thread.join(_JOIN_SECONDS)

    def _end(self, error: Exception) -> None:
        with self._lock:
            if self.is_closed:
                return
            self.is_closed, self._error = True, error
            jobs, self._jobs = self._jobs, deque()
            os.eventfd_write(self._wake, 1)
            connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # Its thread need not wait for a peer that is stopped.
        for job in jobs:
            _fail(job, error)

    def _wake_up(self) -> None:
        with self._lock:
            if not self.is_closed:  # The thread may be over, and what wakes it closed.
                os.eventfd_write(self._wake, 1)

    def _gone(self, reason: object) -> str:
        host, port, _ = self._sender
        return f"{self._endpoint.name} cannot read from {host}:{port}: {reason}"

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        host, port, _ = self._sender
        try:
            with socket.create_connection((host, port), timeout=self._endpoint.timeout) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._connection = connection
                self._receive_all(connection)
        except TimeoutError as error:
            self._end(
                RelayTimeout(self._gone(f"it did not answer within {self._endpoint.timeout:g} s ({error})"))
            )
        except (OSError, RuntimeError) as error:
            late = bool(self._jobs) and time.monotonic() >= self._jobs[0].deadline
            self._end((RelayTimeout if late else RelayReadError)(self._gone(error)))
        except Exception as error:
            logger.exception("%s: receiving failed", self._endpoint.name)
            self._end(RelayReadError(self._gone(error)))
        finally:
            self._end(RelayReadError(self._gone("it has closed the connection")))
            with self._lock:
                os.close(self._wake)

    def _receive_all(self, connection: socket.socket) -> None:
        endpoint, (_, _, token) = self._endpoint, self._sender
        connection.sendall(_HELLO.pack(_MAGIC, token, endpoint.gpu))
        welcome = receive_exactly(connection, _WELCOME.size)
        if welcome is None:
            raise ConnectionError("it does not know the token that was announced")
        (by_nccl,) = _WELCOME.unpack(welcome)
        if by_nccl and not any(endpoint.gpu):
            raise ConnectionError("it wants NCCL, and this side has no GPU")
        group = self._meet(connection, by_nccl)
        try:
            while self._wait_for_job(connection):
                job = self._jobs[0]
                received = self._receive_one(connection, group, job)
                with self._lock:
                    if self.is_closed:
                        return  # It has failed already.
                    self._jobs.popleft()
                if received is None:
                    _fail(job, RelayReadError(self._gone("what was announced is not there (any more)")))
                elif job.future.set_running_or_notify_cancel():
                    job.future.set_result(received)
        finally:
            group.close()

    def _meet(self, connection: socket.socket, by_nccl: bool) -> PairGroup:
        """The group, which is given up as soon as the sender is gone or the link closed.

        It is made in another thread, because an engine that waits for a peer cannot be stopped.
        """
        made: Future[PairGroup] = Future()
        made.add_done_callback(lambda _: self._wake_up())
        meet = partial(self._endpoint.meet, connection, RECEIVER, by_nccl)
        _start(partial(_settle, made, meet), f"{self._endpoint.name}: meet")
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        poll.register(self._wake, select.POLLIN)
        while not made.done():
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self.is_closed or (connection.fileno() in ready and not made.done()):
                made.add_done_callback(_discard)
                # That thread may wait in it, and would not hear of its being closed alone.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                raise ConnectionError("it has closed the connection")
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        return made.result()

    def _wait_for_job(self, connection: socket.socket) -> bool:
        """False if there is nothing more to do: the link is closed or the sender gone."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self.is_closed:
            if self._jobs:
                return True
            ready = [descriptor for descriptor, _ in poll.poll()]
            if connection.fileno() in ready:
                return False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        return False

    def _receive_one(self, connection: socket.socket, group: PairGroup, job: _Job) -> torch.Tensor | None:
        """The payload; None if the sender does not have it."""
        remaining = job.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("an earlier payload took too long")
        connection.settimeout(remaining)
        connection.sendall(_REQUEST.pack(job.offer.ticket, job.offer.nbytes))
        answer = receive_exactly(connection, 1)
        if answer == _REFUSED:
            return None
        if answer != _GRANTED:
            raise ConnectionError("it has closed the connection")
        received = group.memory(job.offer.nbytes)
        if job.offer.nbytes:
            group.receive(received, job.deadline - time.monotonic())
        connection.sendall(_DONE)
        return received


def _settle(made: Future[PairGroup], meet: Callable[[], PairGroup]) -> None:
    try:
        made.set_result(meet())
    except Exception as error:  # noqa: BLE001  the task that waits for the group gets it
        made.set_exception(error)


def _discard(made: Future[PairGroup]) -> None:
    if made.exception() is None:
        made.result().close()


def _fail(job: _Job, error: Exception) -> None:
    if job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
