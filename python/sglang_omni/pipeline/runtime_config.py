"""From a config to what a run needs: plans, endpoints, relay options, and a folder for its sockets."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_omni.config import (
    EndpointsConfig,
    PipelineConfig,
    RelayConfig,
    StageConfig,
    build_process_topology_plan,
    build_stage_placement_plan,
    import_callable,
    stage_instances,
)
from sglang_omni.config.instances import instances_of
from sglang_omni.config.placement import StagePlacementPlan
from sglang_omni.config.topology import ProcessTopologyPlan
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.transport.curve import RunKeys
from sglang_omni.pipeline.transport.local_socket import LONGEST_PATH

logger = logging.getLogger(__name__)

_RANDOM_SUFFIX = 8
# Marks a run's folder, and is locked as long as the run lives.
_LOCK = "run.lock"


class IpcRuntimeDir:
    """The folder of one run's sockets, readable by its user alone. Closing it removes it.

    A lock on a file in it tells a folder in use from one whose run was killed; the latter are removed
    by the next run under the same ``base_path``.
    """

    def __init__(
        self, path: Path, *, lock_fd: int | None = None, remove_parent: bool = False, shared: bool = False
    ) -> None:
        """Take over ``path``, with the descriptor of its locked file where there is one.

        A folder that is ``shared`` is removed by the last process that has such a descriptor.
        """
        self.path = path
        self._lock_fd = lock_fd
        self._remove_parent = remove_parent
        self._shared = shared
        self._closed = False

    def close(self) -> None:
        """Remove the folder. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
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
    """Create a folder of mode 0700 for one run's sockets, and remove those that killed runs left behind.

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
    runtime_dir = IpcRuntimeDir(path, lock_fd=_lock(path), remove_parent=ours)
    try:
        _require_short(path, config.stages)
    except ValueError:
        runtime_dir.close()
        raise
    return runtime_dir


def join_ipc_runtime_dir(config: PipelineConfig, name: str) -> IpcRuntimeDir:
    """The folder of a run's processes on this host that have no parent here to create it; the first one does.

    Folders that killed runs left behind are removed.

    Args:
        config: The pipeline. Where it does not say where sockets are to be, it is where this host has them.
        name: The run's.

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
    """Whether what is open is still what has this path."""
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
            continue  # somebody else's, or removed this moment
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            logger.info("Removing %s, left behind by a run that was killed", lock.parent)
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


def _endpoint_keys(stages: Sequence[StageConfig]) -> list[str]:
    return ["completion", "abort", *(f"stage_{it.name}" for stage in stages for it in instances_of(stage))]


def _longest_socket(stages: Sequence[StageConfig]) -> int:
    return max(len(os.fsencode(f"{key}.sock")) for key in _endpoint_keys(stages))


def _require_short(folder: Path, stages: Sequence[StageConfig]) -> None:
    length = len(os.fsencode(folder)) + 1 + _longest_socket(stages)
    if length > LONGEST_PATH:
        raise ValueError(
            f"a socket's path in {folder} would have {length} characters, more than the {LONGEST_PATH} "
            "that a Unix socket allows. Shorten endpoints.base_path or the stages' names"
        )


def allocate_endpoints(*, stages: Sequence[StageConfig], ipc_base_dir: Path) -> dict[str, str]:
    """``ipc://`` endpoints in a run's folder: ``"completion"``, ``"abort"`` and ``"stage_{instance}"``.

    Raises:
        ValueError: A socket's path would be too long.
    """
    _require_short(Path(ipc_base_dir), stages)
    return {key: f"ipc://{ipc_base_dir}/{key}.sock" for key in _endpoint_keys(stages)}


def _allocate_tcp_endpoints(stages: Sequence[StageConfig], endpoints: EndpointsConfig) -> dict[str, str]:
    keys = _endpoint_keys(stages)
    if endpoints.base_port is not None:
        ports = [endpoints.base_port + index for index in range(len(keys))]
    else:
        # All are held until all are known, so that none is given out twice.
        held = [socket.create_server((endpoints.host, 0)) for _ in keys]
        ports = [server.getsockname()[1] for server in held]
        for server in held:
            server.close()
    return {key: f"tcp://{endpoints.host}:{port}" for key, port in zip(keys, ports, strict=True)}


@dataclass(frozen=True)
class PipelineRuntimePrep:
    """What a run needs, resolved.

    Attributes:
        stages_cfg: The stages, in config order.
        name_map: Stage of the config -> the stage that runs it. Fusing is colocation, so each runs itself.
        entry_stage: Where requests enter.
        endpoints: ``"completion"``, ``"abort"`` and ``"stage_{instance}"`` -> endpoint of the socket; empty
            for stages on other hosts, which tell theirs when they are up.
        placement_plan: Which stage is on which GPUs.
        process_plan: Which stage is in which process.
        runtime_dir: The folder of the run's sockets; whoever asked for the preparation closes it.
        keys: What the run's ``tcp://`` sockets talk with.
        host_address: Where other hosts reach this one; None where there are none.
    """

    stages_cfg: list[StageConfig]
    name_map: dict[str, str]
    entry_stage: str
    endpoints: dict[str, str]
    placement_plan: StagePlacementPlan
    process_plan: ProcessTopologyPlan
    runtime_dir: IpcRuntimeDir
    keys: RunKeys
    host_address: str | None = None


def prepare_pipeline_runtime(
    config: PipelineConfig,
    *,
    ipc_runtime_dir: IpcRuntimeDir | None = None,
    node: str | None = None,
    host_address: str | None = None,
    keys: RunKeys | None = None,
    coordinator_endpoints: Mapping[str, str] | None = None,
) -> PipelineRuntimePrep:
    """Resolve plans and endpoints of a run. Imports no factory and starts nothing.

    Args:
        config: The pipeline.
        ipc_runtime_dir: An existing folder for the sockets; a new one is created when None.
        node: The host to prepare for: it has sockets of its own stages only. None: the coordinator's.
        host_address: The address at which the other hosts reach this one; None where all is on one host.
        keys: The run's keys, on a host that joins a run; new ones when None.
        coordinator_endpoints: ``"completion"`` and ``"abort"``, on a host that joins a run.

    Raises:
        ValueError: The plans break one of the config's rules, or a socket's path would be too long.
    """
    # The plans first: a config that cannot run leaves nothing on disk.
    placement_plan = build_stage_placement_plan(config)
    process_plan = build_process_topology_plan(config, placement_plan)
    stages = list(config.stages)
    runtime_dir = ipc_runtime_dir or create_ipc_runtime_dir(config)
    try:
        if config.endpoints.scheme == "tcp":
            endpoints = _allocate_tcp_endpoints(stages, config.endpoints)
        else:
            endpoints = allocate_endpoints(stages=stages, ipc_base_dir=runtime_dir.path)
        elsewhere = [f"stage_{it.name}" for it in stage_instances(config) if it.node != node]
        endpoints |= dict.fromkeys(elsewhere, "") | dict(coordinator_endpoints or {})
    except BaseException:
        if ipc_runtime_dir is None:
            runtime_dir.close()
        raise
    return PipelineRuntimePrep(
        stages_cfg=stages,
        name_map={stage.name: stage.name for stage in stages},
        entry_stage=config.resolved_entry_stage,
        endpoints=endpoints,
        placement_plan=placement_plan,
        process_plan=process_plan,
        runtime_dir=runtime_dir,
        keys=keys or RunKeys.generate(),
        host_address=host_address,
    )


def build_coordinator(
    config: PipelineConfig,
    endpoints: dict[str, str],
    *,
    keys: RunKeys | None = None,
    host_address: str | None = None,
) -> Coordinator:
    """The pipeline's coordinator, which knows no stage yet. The others are as in ``PipelineRuntimePrep``.

    Raises:
        ImportError: ``terminal_stages_fn`` cannot be imported.
    """
    resolver = config.terminal_stages_fn
    return Coordinator(
        completion_endpoint=endpoints["completion"],
        abort_endpoint=endpoints["abort"],
        entry_stage=config.resolved_entry_stage,
        terminal_stages=config.terminal_stages or None,
        terminal_stages_resolver=import_callable(resolver, stage=None, field="terminal_stages_fn")
        if resolver
        else None,
        keys=keys,
        host_address=host_address,
    )


def build_relay_configs(
    config: PipelineConfig,
    stage: StageConfig,
    backends: Collection[str],
    gpu_id: int | None,
    host_address: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Each backend that a stage's edges use -> the options of ``create_relay``.

    Every relay has slots and credits of its own, and takes those of the stage's ``backend_options`` that its
    constructor knows. Where the stage says nothing, tensors of a stage on a GPU travel from that GPU, except
    through shared memory, which is the CPU's. Ranks of a collective relay are the stages' positions.

    Args:
        config: The pipeline.
        stage: The stage.
        backends: The backends.
        gpu_id: The stage's GPU, None on the CPU.
        host_address: Where peers of other hosts reach this one; None where there are none.
    """
    relay = stage.relay or RelayConfig(device="cpu" if gpu_id is None else f"cuda:{gpu_id}")
    given = {} if host_address is None else {"host": host_address}
    options = {
        **given,
        **relay.backend_options,
        "slot_size_mb": relay.slot_size_mb,
        "credits": relay.credits,
        "rank": [s.name for s in config.stages].index(stage.name) if relay.rank is None else relay.rank,
        "world_size": len(config.stages) if relay.world_size is None else relay.world_size,
    }
    # Told a GPU, shared memory refuses; a stage that has nothing else is to hear of that.
    told = stage.relay is not None and len(backends) == 1
    return {
        backend: {**options, "device": relay.device if backend != "shm" or told else "cpu"}
        for backend in backends
    }
