"""The folder of a run's sockets, which is removed when the run ends, or by the next run if it was killed."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sglang_omni.config.plan.instances import instances_of
from sglang_omni.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.mps import quit_daemon
from sglang_omni.pipeline.transport.ipc.address import LONGEST_PATH
from sglang_omni.supervision.ports import bind

logger = logging.getLogger(__name__)

_RANDOM_SUFFIX = 8
# Marks a run's folder, and is locked as long as the run lives.
_LOCK = "run.lock"


class IpcRuntimeDir:
    """The folder of one run's sockets, readable by its user alone. Closing it removes it.

    A locked file in it marks a folder in use. One without a lock is left over from a run that was killed; the
    next run under the same ``base_path`` removes it.
    """

    def __init__(
        self, path: Path, *, lock_fd: int | None = None, remove_parent: bool = False, shared: bool = False
    ) -> None:
        """Take over a folder.

        Args:
            path: The folder.
            lock_fd: The descriptor of its locked file, if it has one.
            remove_parent: Remove the folder above it, too, if that is empty then.
            shared: Other processes have such a descriptor; the last of them removes the folder.
        """
        self.path = path
        self._lock_fd = lock_fd
        self._remove_parent = remove_parent
        self._shared = shared
        self._closed = False
        self._ports: list[socket.socket] = []

    def hold_ports(self, host: str, count: int) -> list[int]:
        """Free ports of an address of this machine, for processes of the run to listen on.

        No other program gets them until the folder is closed.

        Raises:
            OSError: The address cannot be used.
        """
        held = [bind(host) for _ in range(count)]
        self._ports += held
        return [port.getsockname()[1] for port in held]

    def close(self) -> None:
        """Remove the folder. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for port in self._ports:
            port.close()
        if self._shared and self._lock_fd is not None:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock_fd)
                return
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock_fd is not None:
            os.close(self._lock_fd)
        if self._remove_parent:
            try:
                self.path.parent.rmdir()
            except OSError:
                pass  # another run's folder is in it

    def __enter__(self) -> IpcRuntimeDir:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"IpcRuntimeDir({str(self.path)!r})"


def create_ipc_runtime_dir(config: PipelineConfig) -> IpcRuntimeDir:
    """Create a folder of mode 0700 for one run's sockets, and remove those of runs that were killed.

    Raises:
        ValueError: Socket paths under ``endpoints.base_path`` would be too long.
        PermissionError: The default base folder belongs to another user.
    """
    base = Path(config.endpoints.base_path)
    ours = "base_path" not in config.endpoints.model_fields_set
    slug = re.sub(r"[^0-9a-z]+", "-", Path(config.name or "pipeline").name.lower()).strip("-")
    room = (
        LONGEST_PATH - len(os.fsencode(base)) - _longest_socket(config.stages) - _RANDOM_SUFFIX - len("/-/")
    )
    prefix = f"{slug[:room]}-" if room > 0 and slug else ""
    while True:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ours:
            _require_private(base)
        _sweep(base)
        try:
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        except FileNotFoundError:
            continue  # another run, the last one in it, has just removed the base folder
        break
    try:
        lock_fd = _lock(path)
    except OSError:
        # Without a lock, no later run would know that it is left behind.
        shutil.rmtree(path, ignore_errors=True)
        raise
    runtime_dir = IpcRuntimeDir(path, lock_fd=lock_fd, remove_parent=ours)
    try:
        require_short_paths(path, config.stages)
    except ValueError:
        runtime_dir.close()
        raise
    return runtime_dir


def join_ipc_runtime_dir(config: PipelineConfig, name: str) -> IpcRuntimeDir:
    """The folder of a run's processes that have no parent on this host; the first of them creates it.

    Folders of runs that were killed are removed.

    Args:
        config: The pipeline. Without an ``endpoints.base_path`` in it, this host's default holds.
        name: The folder's name, which is the run's.

    Raises:
        PermissionError: The default base folder belongs to another user.
    """
    ours = "base_path" not in config.endpoints.model_fields_set
    base = Path((EndpointsConfig() if ours else config.endpoints).base_path)
    path = base / name
    _sweep(base)
    while True:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ours:
            _require_private(base)
        try:
            fd = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue  # the last process before this one has just removed it
        fcntl.flock(fd, fcntl.LOCK_SH)
        if _is_file(fd, path / _LOCK):
            return IpcRuntimeDir(path, lock_fd=fd, remove_parent=ours, shared=True)
        os.close(fd)


def _is_file(fd: int, path: Path) -> bool:
    """True if the open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _lock(path: Path) -> int:
    """Create the folder's lock file, which appears under its name already locked."""
    unnamed = path / f"{_LOCK}.new"
    fd = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    unnamed.rename(path / _LOCK)
    return fd


def _sweep(base: Path) -> None:
    for lock in base.glob(f"*/{_LOCK}"):
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or removed this moment
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            logger.info("Removing %s, left behind by a run that was killed", lock.parent)
            quit_daemon(lock.parent)
            shutil.rmtree(lock.parent, ignore_errors=True)
        finally:
            os.close(fd)


def _require_private(base: Path) -> None:
    status = base.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise PermissionError(
            f"{base} can be written to by other users, so sockets in it would not be safe. "
            "Set endpoints.base_path to a folder of your own"
        )


def endpoint_keys(stages: Sequence[StageConfig]) -> list[str]:
    """The keys of a run's endpoints: ``"completion"``, ``"abort"`` and ``"stage_{instance}"``."""
    return ["completion", "abort", *(f"stage_{it.name}" for stage in stages for it in instances_of(stage))]


def _longest_socket(stages: Sequence[StageConfig]) -> int:
    return max(len(os.fsencode(f"{key}.sock")) for key in endpoint_keys(stages))


def require_short_paths(folder: Path, stages: Sequence[StageConfig]) -> None:
    """Raise ValueError if a socket's path in the folder would be too long."""
    length = len(os.fsencode(folder)) + 1 + _longest_socket(stages)
    if length > LONGEST_PATH:
        raise ValueError(
            f"a socket's path in {folder} would have {length} characters, more than the {LONGEST_PATH} "
            "that a Unix socket allows. Shorten endpoints.base_path or the stages' names"
        )
