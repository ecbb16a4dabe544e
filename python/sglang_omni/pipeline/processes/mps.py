"""CUDA's Multi-Process Service (MPS), which lets kernels of several processes on one GPU run side by side.

Without it they take turns. A run starts a daemon of its own, which its processes on GPUs find by their
environment, and ends it when they are gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from sglang_omni.gpus import VISIBLE_DEVICES, visible_gpus
from sglang_omni.pipeline.specs import ProcessSpec

logger = logging.getLogger(__name__)

MpsMode = Literal["auto", "on", "off"]

# The daemon, and the program that talks to it.
_CONTROL = "nvidia-cuda-mps-control"
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
# Where CUDA itself looks for a daemon.
_DEFAULT_PIPES = "/tmp/nvidia-mps"
# In a run's folder.
_FOLDER = "mps"
_START_S = 30.0
_ANSWER_S = 30.0
_STOP_S = 3.0

# What a process does first on a GPU: it makes the daemon start its server.
_TRIAL = """
import ctypes, sys
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name}: CUDA error {status}")
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
"""


class MpsError(RuntimeError):
    """MPS cannot be used; the text says why."""


class MpsDaemon:
    """A daemon of one run's own.

    Args:
        folder: For its sockets and logs; it is created.
        uuids: The GPUs that it serves: their indices among this process's, and their UUIDs. CUDA counts the
            daemon's GPUs otherwise than its clients', so that numbers would be ambiguous.
    """

    def __init__(self, folder: Path, uuids: Mapping[int, str]) -> None:
        self._folder = folder
        self._uuids = dict(uuids)

    async def start(self) -> None:
        """Start it, and have a process use it. Close it also if this fails.

        Raises:
            MpsError: It is not installed, does not start, or no process can use it.
        """
        if shutil.which(_CONTROL) is None:
            raise MpsError(f"{_CONTROL} is not installed")
        all_gpus = self._environment(*self._uuids.values())
        first_gpu = self._environment(next(iter(self._uuids.values())))
        try:
            (self._folder / "log").mkdir(parents=True)
            async with asyncio.timeout(_START_S):
                # Ends once the daemon listens.
                await _run([_CONTROL, "-d"], all_gpus)
                await _try(first_gpu)
        except TimeoutError as error:
            raise MpsError(f"it is not up after {_START_S:g} s") from error
        except OSError as error:
            raise MpsError(str(error)) from error

    def environment_of(self, spec: ProcessSpec) -> dict[str, str]:
        """The variables by which a process uses it; none for a process that does not see one GPU alone."""
        gpu_id = _only_gpu(spec)
        return {} if gpu_id is None else self._environment(self._uuids[gpu_id])

    async def close(self) -> None:
        """End it, after the processes that used it."""
        await asyncio.to_thread(quit_daemon, self._folder.parent)

    def _environment(self, *uuids: str) -> dict[str, str]:
        return {
            VISIBLE_DEVICES: ",".join(uuids),
            _PIPES: str(self._folder),
            _LOGS: str(self._folder / "log"),
        }


async def start_mps(mode: MpsMode, specs: Sequence[ProcessSpec]) -> MpsDaemon | None:
    """The daemon for these processes of this host, if they need one and it can be had.

    They need one if ``mode`` is "on", or "auto" and several of them share a GPU; and not if one runs already
    that CUDA finds by itself, and a process can use it.

    Raises:
        MpsError: ``mode`` is "on", and it cannot be had. With "auto" a warning says why.
    """
    on_gpu = Counter(gpu_id for spec in specs if (gpu_id := _only_gpu(spec)) is not None)
    gpus = {gpu.index: gpu for gpu in visible_gpus() if gpu.index in on_gpu}
    wanted = mode == "on" or (mode == "auto" and max(on_gpu.values(), default=0) > 1)
    if not wanted or not gpus:
        return None
    if await _runs_already():
        logger.info("Processes on GPUs use the MPS daemon that runs already")
        return None
    daemon = MpsDaemon(Path(specs[0].runtime_dir) / _FOLDER, {index: gpu.uuid for index, gpu in gpus.items()})
    try:
        if any(gpu.uuid.startswith("MIG-") for gpu in gpus.values()):
            raise MpsError("the GPU is a MIG slice")
        await daemon.start()
    except BaseException as error:
        await daemon.close()
        if not isinstance(error, MpsError):
            raise
        if mode == "on":
            raise MpsError(f"--mps on: {error}") from error
        logger.warning("Processes that share a GPU take turns on it, without MPS: %s (--mps off)", error)
        return None
    logger.info("MPS lets processes that share a GPU compute side by side (--mps)")
    return daemon


async def _runs_already() -> bool:
    """True if CUDA finds a daemon by itself, and a process on a GPU can use it.

    A daemon that was killed leaves its socket behind, and that of another user takes no process of this one.
    """
    pipes = os.environ.get(_PIPES) or _DEFAULT_PIPES
    if not Path(pipes, "control").exists():
        return False
    if shutil.which(_CONTROL) is None:
        # It cannot be asked, and none could be started in its place.
        return True
    try:
        async with asyncio.timeout(_ANSWER_S):
            await _try({_PIPES: pipes})
    except (MpsError, TimeoutError, OSError) as error:
        reason = str(error) or f"no answer in {_ANSWER_S:g} s"
        logger.warning("The MPS daemon of %s cannot be used, so another one is started: %s", pipes, reason)
        return False
    return True


async def _try(environment: Mapping[str, str]) -> None:
    """Has a process on a GPU use the daemon of ``environment``. MpsError if it cannot, or does not."""
    await _run([sys.executable, "-c", _TRIAL], environment)
    # A process that does not find the daemon goes on without it, and says nothing.
    if not await _run([_CONTROL], environment, "get_server_list\n"):
        raise MpsError("a process on a GPU did not reach it")


def quit_daemon(runtime_dir: Path) -> None:
    """End the daemon of a run, if it has one that still runs.

    Args:
        runtime_dir: The run's folder.
    """
    folder = runtime_dir / _FOLDER
    if not folder.is_dir() or shutil.which(_CONTROL) is None:
        return
    try:
        subprocess.run(
            [_CONTROL],
            input=b"quit\n",
            env={**os.environ, _PIPES: str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_STOP_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("The MPS daemon in %s was not ended: %s", folder, error)


def _only_gpu(spec: ProcessSpec) -> int | None:
    """The GPU of a process that sees no other."""
    stages = [stage for stage in spec.stages if stage.gpu_id is not None and not stage.all_gpus]
    return stages[0].gpu_id if stages else None


async def _run(command: list[str], environment: Mapping[str, str], text: str = "") -> str:
    """What a program writes, given ``text``. MpsError if it fails; it is killed if this is cancelled."""
    # Files and not pipes, which a daemon would hold open for as long as it runs.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as written:
        given.write(text.encode())
        given.seek(0)
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **environment},
            stdin=given,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
        try:
            status = await process.wait()
        except BaseException:
            process.kill()
            raise
        written.seek(0)
        output = written.read().decode(errors="replace").strip()
    if status != 0:
        raise MpsError(f"{Path(command[0]).name} failed with status {status}: {output or 'no output'}")
    return output
