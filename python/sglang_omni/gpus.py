"""The GPUs of this machine, as far as this process may use them, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_omni.relay.shm.cuda_driver import CudaError, cuda_driver


@dataclass(frozen=True)
class Gpu:
    """
    Attributes:
        index: Its place among the visible GPUs, from 0.
        uuid: As in ``nvidia-smi -L`` and ``CUDA_VISIBLE_DEVICES``: ``"GPU-..."``.
        name: The product's name, for people.
        total_bytes: Its memory; of a MIG slice, the slice's.
        capability: Compute capability, such as (9, 0).
    """

    index: int
    uuid: str
    name: str
    total_bytes: int
    capability: tuple[int, int]


def visible_gpus() -> list[Gpu]:
    """The GPUs that this process may use, by the index that ``cuda:N`` has; none without a driver.

    ``CUDA_VISIBLE_DEVICES`` decides which these are. No memory is taken on them.
    """
    try:
        driver = cuda_driver()
        return [Gpu(index, *driver.describe(index)) for index in range(driver.device_count())]
    except CudaError:
        return []
