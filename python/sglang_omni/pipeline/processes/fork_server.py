"""A process that has imported what stages need and forks them, so that an import is paid for once.

A stage's process spends most of its start in importing torch and transformers: 5 to 10 s of a core each.
Processes forked from one that has imported them share that time, and the memory of the modules. It is what
``forkserver`` of ``multiprocessing`` does, but that its processes are children of the one that asks for them:
their pidfd, their exit status and the kernel's signal at its end are as of any child.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import importlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import spawn
from typing import IO, NoReturn

from sglang_omni.supervision.garbage import freeze_loaded
from sglang_omni.supervision.parent import end_with_parent

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
# A fork takes some hundredths of a second; the caller's event loop waits meanwhile.
_ANSWER_S = 5.0
_NUMBER = struct.Struct("=i")
_REQUEST = b"f"
_MOST_TEXT = 4096
_BOOTSTRAP = (
    "import pickle, sys; source = open({source}, 'rb'); sys.path[:] = pickle.load(source); "
    "from sglang_omni.pipeline.processes.fork_server import serve; serve(source, {connection})"
)
# What each process imports in any case.
_CHILD = "sglang_omni.pipeline.processes.child"
# Open in a process that has begun to use a GPU, which no child of it can.
_GPU_FILES = "/dev/nvidia"


class ForkedProcess:
    """A process that a fork server made, which is a child of this one. Of ``subprocess.Popen``'s attributes
    it has the three that its parent needs.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit status; -9 stands for signal 9."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkServer:
    """
    Args:
        modules: What it imports.
        environment: Its environment while it does. A forked process gets one of its own, but what modules
            have read of it when they were imported stays.

    Raises:
        OSError: There is no descriptor, process or memory left for it.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as passed_on:
            source = passed_on.enter_context(memory_file(sys.path, os.getpid(), [_CHILD, *modules]))
            self._connection, theirs = socket.socketpair()
            failed.callback(self._connection.close)
            passed_on.callback(theirs.close)
            self._connection.setblocking(False)
            self._process = start_python(
                _BOOTSTRAP.format(source=source.fileno(), connection=theirs.fileno()),
                environment,
                (source.fileno(), theirs.fileno()),
            )
            failed.pop_all()

    async def ready(self) -> str:
        """Wait until it can fork. Returns "", or why it cannot."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            if answer := await loop.sock_recv(self._connection, _MOST_TEXT):
                return answer[1:].decode()
        return "it has ended"

    def fork(self, environment: Mapping[str, str], spec_fd: int, report_fd: int) -> ForkedProcess:
        """Start a process that runs ``child.main``.

        Args:
            environment: Its whole environment.
            spec_fd, report_fd: The descriptors that ``child.main`` takes.

        Raises:
            ForkServerLost: The server has ended, or does not answer.
            OSError: There is no process, descriptor or memory left for it.
        """
        with memory_file(dict(environment)) as variables:
            try:
                self._connection.settimeout(_ANSWER_S)
                with _adopting():
                    socket.send_fds(self._connection, [_REQUEST], [variables.fileno(), spec_fd, report_fd])
                    answer = self._connection.recv(_NUMBER.size, socket.MSG_WAITALL)
            except OSError as exc:
                raise ForkServerLost(f"it does not answer: {exc}") from exc
        if len(answer) < _NUMBER.size:
            raise ForkServerLost("it has ended")
        (number,) = _NUMBER.unpack(answer)
        if number < 0:
            raise OSError(-number, os.strerror(-number))
        return ForkedProcess(number)

    def close(self) -> None:
        """End it. The processes that it has forked go on."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


class ForkServerLost(Exception):
    """A fork server can fork no more."""


@contextlib.contextmanager
def memory_file(*values: object) -> Iterator[IO[bytes]]:
    """A file in memory with pickles of the values, each of which may need what the one before it sets up."""
    with os.fdopen(os.memfd_create("sglang-omni", os.MFD_CLOEXEC), "w+b") as file:
        for value in values:
            pickle.dump(value, file)
        file.seek(0)
        yield file


def start_python(
    code: str, environment: Mapping[str, str], descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a Python process that inherits these descriptors, and in which SIGINT is blocked.

    A terminal's Ctrl-C reaches the whole process group, but only the parent shuts processes down. A blocked
    signal stays blocked until the child can ignore it.
    """
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            [spawn.get_executable(), "-c", code],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=tuple(descriptors),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Processes below this one whose parent ends become its children meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_GET_CHILD_SUBREAPER)")
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


# What follows runs in the server.


def serve(source: IO[bytes], connection_fd: int) -> None:
    """Import the modules, and fork at each request, until the parent or its connection ends.

    Args:
        source: Holds pickles of the parent's pid and the modules' names.
        connection_fd: A connected stream socket.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with source:
        parent_pid, modules = pickle.load(source), pickle.load(source)
    connection = socket.socket(fileno=connection_fd)
    connection.set_inheritable(False)
    if not end_with_parent(parent_pid, signal.SIGKILL):
        os._exit(1)
    gc.disable()
    why_not = _import_all(modules)
    # What is there now is never collected: a collection in a child would copy the pages of all of it.
    freeze_loaded()
    gc.enable()
    connection.sendall(b"." + why_not.encode()[: _MOST_TEXT - 1])
    while not why_not:
        request, descriptors, _, _ = socket.recv_fds(connection, len(_REQUEST), 3)
        if request != _REQUEST:
            break
        try:
            # The kernel leaves out those for which there was no room.
            answer = _fork(descriptors, connection) if len(descriptors) == 3 else -errno.EMFILE
        except OSError as exc:
            answer = -(exc.errno or errno.EAGAIN)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(_NUMBER.pack(answer))
    os._exit(0)


def _import_all(modules: Sequence[str]) -> str:
    """Import them. Returns "", or why a child of this process could not go on from here."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as exc:  # noqa: BLE001  whatever it is, the stage that needs the module reports it
            return f"importing {name} failed: {exc!r}"
    # Libraries that fork well end their threads before a fork, and start them again when they need them.
    if (trial := os.fork()) == 0:
        os._exit(0)
    os.waitpid(trial, 0)
    if len(os.listdir("/proc/self/task")) > 1:
        return f"the imports have started threads ({', '.join(_thread_names())})"
    if any(_links_to(number).startswith(_GPU_FILES) for number in os.listdir("/proc/self/fd")):
        return "the imports have begun to use a GPU"
    return ""


def _thread_names() -> list[str]:
    known = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    return known or ["not Python's"]


def _links_to(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


def _fork(descriptors: Sequence[int], connection: socket.socket) -> int:
    """Fork twice. Returns the process's id, once this process's parent has become its parent.

    Raises:
        OSError: There is no process, descriptor or memory left for it.
    """
    may_go_on, hold_back = os.pipe()
    pid_comes, send_pid = os.pipe()
    between = os.fork()
    if between == 0:
        # The process between the two ends at once, which makes the server's parent the other one's.
        os.close(pid_comes)
        os.close(hold_back)
        try:
            pid = os.fork()
        except OSError as exc:
            pid = -(exc.errno or errno.EAGAIN)
        if pid == 0:
            os.close(send_pid)
            _become(descriptors, connection, may_go_on)
        os.write(send_pid, _NUMBER.pack(pid))
        os._exit(0)
    os.close(may_go_on)
    os.close(send_pid)
    answer = os.read(pid_comes, _NUMBER.size)
    os.close(pid_comes)
    os.waitpid(between, 0)
    os.close(hold_back)
    return int(_NUMBER.unpack(answer)[0]) if answer else -errno.EAGAIN


def _become(descriptors: Sequence[int], connection: socket.socket, may_go_on: int) -> NoReturn:
    """Run ``child.main``, once the other end of ``may_go_on`` is closed."""
    connection.close()
    os.read(may_go_on, 1)
    os.close(may_go_on)
    variables_fd, spec_fd, report_fd = descriptors
    with open(variables_fd, "rb") as variables:
        environment = pickle.load(variables)
    os.environ.clear()
    os.environ.update(environment)
    if numpy := sys.modules.get("numpy"):
        # Else every process would draw the same numbers.
        numpy.random.seed()
    from sglang_omni.pipeline.processes.child import main

    source = open(spec_fd, "rb")  # noqa: SIM115  main closes it
    sys.path[:] = pickle.load(source)
    main(source, report_fd)
    os._exit(1)
