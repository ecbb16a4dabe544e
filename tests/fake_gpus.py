"""GPUs of any kind and number, as ``sglang_omni.gpus.visible_gpus`` finds them."""

from __future__ import annotations

import pytest

from sglang_omni import gpus
from sglang_omni.gpus import Gpu

# What torch.cuda.get_device_properties says of each, in MiB, and its compute capability.
KINDS: dict[str, tuple[int, tuple[int, int]]] = {
    "RTX 4090": (24_207, (8, 9)),
    "L4": (22_563, (8, 9)),
    "L40S": (45_466, (8, 9)),
    "RTX A6000": (48_680, (8, 6)),
    "A100 80GB": (81_050, (8, 0)),
    "H100 80GB": (81_008, (9, 0)),
    "H200": (143_064, (9, 0)),
    "B200": (182_642, (10, 0)),
}


class _Driver:
    def __init__(self, kinds: list[str]) -> None:
        self._kinds = kinds

    def device_count(self) -> int:
        return len(self._kinds)

    def describe(self, index: int) -> tuple[str, str, int, tuple[int, int]]:
        mib, capability = KINDS[self._kinds[index]]
        return f"GPU-{index}", self._kinds[index], mib << 20, capability


def fake_gpus(kind: str, number: int = 1) -> list[Gpu]:
    """``number`` GPUs of a kind of ``KINDS``."""
    driver = _Driver([kind] * number)
    return [Gpu(index, *driver.describe(index)) for index in range(number)]


def install(monkeypatch: pytest.MonkeyPatch, kind: str | None, number: int = 1) -> None:
    """Makes this machine have ``number`` GPUs of a kind of ``KINDS``; none if it is None."""
    monkeypatch.setattr(gpus, "cuda_driver", lambda: _Driver([kind] * number if kind else []))
