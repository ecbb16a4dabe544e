"""The GPUs of this machine, as far as this process may use them, without importing torch."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import combinations, takewhile
from typing import Any

from sglang_omni.relay.shm.cuda_driver import CudaError, cuda_driver, gpu_count

logger = logging.getLogger(__name__)

# CUDA's own variable: the GPUs that a process may use, by number or UUID, in the order of their indices.
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
# "1" lets the ranks of a tensor parallel stage use SGLang's own all-reduce, which needs NVLink between them.
CUSTOM_ALL_REDUCE = "SGLANG_OMNI_CUSTOM_ALL_REDUCE"

_most: ContextVar[int | None] = ContextVar("most", default=None)
_assumed: ContextVar[Sequence[Gpu] | None] = ContextVar("assumed", default=None)


@dataclass(frozen=True)
class Gpu:
    """
    Attributes:
        index: Its place among the visible GPUs, from 0.
        uuid: As in ``nvidia-smi -L`` and ``CUDA_VISIBLE_DEVICES``: ``"GPU-..."``; of a slice, ``"MIG-..."``.
        name: The product's name, for people.
        total_bytes: Its memory; of a MIG slice, the slice's.
        capability: Compute capability, such as (9, 0).
        used_bytes: What other programs have of its memory, if that was asked; see ``with_use``.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int
    capability: tuple[int, int]
    used_bytes: int = 0


def visible_gpus() -> list[Gpu]:
    """The GPUs that this process may use, by the index that ``cuda:N`` has; none without a driver.

    ``CUDA_VISIBLE_DEVICES`` decides which these are, inside of ``only_first`` its count, and inside of
    ``assuming`` its argument. Of several MIG slices CUDA shows a process the first alone. No memory is taken
    on them.
    """
    if (assumed := _assumed.get()) is not None:
        return list(assumed)
    try:
        driver = cuda_driver()
        count, most = driver.device_count(), _most.get()
        return [Gpu(i, *driver.describe(i)) for i in range(count if most is None else min(count, most))]
    except CudaError:
        return []


@contextmanager
def assuming(gpus: Sequence[Gpu]) -> Iterator[None]:
    """In it, ``visible_gpus`` has these, whatever the machine has."""
    token = _assumed.set(gpus)
    try:
        yield
    finally:
        _assumed.reset(token)


@contextmanager
def only_first(count: int) -> Iterator[None]:
    """In it, ``visible_gpus`` has ``count`` GPUs at most: those that a process with so many would have."""
    token = _most.set(count)
    try:
        yield
    finally:
        _most.reset(token)


def listed_devices(environment: Mapping[str, str]) -> list[str] | None:
    """The entries of ``CUDA_VISIBLE_DEVICES``; None if it is not set.

    As CUDA does, it stops at the first that is no device: ``"-1"``, or an empty one.
    """
    value = environment.get(VISIBLE_DEVICES)
    if value is None:
        return None
    entries = (entry.strip() for entry in value.split(","))
    return list(takewhile(lambda entry: entry and not entry.startswith("-"), entries))


def visible_devices() -> list[str]:
    """How ``CUDA_VISIBLE_DEVICES`` names each GPU that processes of this one may use; none without a driver.

    Those are ``visible_gpus``, except that a list of MIG slices counts as a whole, though a single process
    can use one of them only.
    """
    count, listed = gpu_count(), listed_devices(os.environ)
    if listed is None:
        return [str(index) for index in range(count)]
    if count and any(entry.startswith("MIG-") for entry in listed):
        return listed
    return listed[:count]


class NvmlUnknown(Exception):
    """NVML does not report it; the text is why."""


@contextmanager
def _nvml() -> Iterator[Any]:
    """The module that asks NVML.

    Raises:
        NvmlUnknown: NVML, or the package that calls it, is missing, or it does not answer.
    """
    try:
        # A requirement of SGLang's package.
        nvml: Any = import_module("pynvml")
    except ModuleNotFoundError as error:
        raise NvmlUnknown("nvidia-ml-py is not installed") from error
    try:
        nvml.nvmlInit()
        try:
            yield nvml
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise NvmlUnknown(f"NVML does not report it: {error}") from error


def with_use(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs with what other programs have of their memory now: a desktop, or another server.

    To be called before a process of one's own is on them. If NVML does not report it, the log says why, and
    the GPUs count as unused. Those of ``assuming`` are not of this machine.
    """
    if not gpus or _assumed.get() is not None:
        return list(gpus)
    try:
        with _nvml() as nvml:
            free = [
                int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)).free)
                for gpu in gpus
            ]
    except NvmlUnknown as reason:
        logger.warning("GPUs count as unused by other programs: %s", reason)
        return list(gpus)
    # What NVML calls used is more: the driver's own part, which CUDA does not count in the total.
    return [
        replace(gpu, used_bytes=max(0, gpu.total_bytes - left)) for gpu, left in zip(gpus, free, strict=True)
    ]


def nvlink_pairs(uuids: Sequence[str]) -> list[tuple[int, int]]:
    """The pairs of GPUs that NVLink connects, by their places in ``uuids``.

    Args:
        uuids: As in ``Gpu.uuid``.

    Raises:
        NvmlUnknown: NVML, or the package that calls it, is missing or does not know a GPU.
    """
    with _nvml() as nvml:
        handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        return [
            (one, other)
            for one, other in combinations(range(len(handles)), 2)
            if nvml.nvmlDeviceGetP2PStatus(handles[one], handles[other], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            == nvml.NVML_P2P_STATUS_OK
        ]


def linked_by_nvlink(uuids: Sequence[str]) -> bool:
    """True if every two of these GPUs are linked by NVLink; False if that is not known."""
    try:
        return len(nvlink_pairs(uuids)) == math.comb(len(uuids), 2)
    except NvmlUnknown as reason:
        logger.warning("NVLink between GPUs counts as absent: %s", reason)
        return False
