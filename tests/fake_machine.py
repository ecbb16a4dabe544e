"""A machine with GPUs that only a CUDA driver of these tests has, which this process and its children load.

They can be counted, described and have contexts, and no more: torch finds none.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.relay.shm.cuda_driver import cuda_driver

_SOURCE = Path(__file__).with_name("fake_driver") / "libcuda.c"


def compile_driver(folder: Path) -> Path:
    """``libcuda.so.1`` in ``folder``."""
    library = folder / "libcuda.so.1"
    command = ["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-Wall", "-Wno-format-truncation", "-Werror"]
    subprocess.run([*command, str(_SOURCE), "-o", str(library)], check=True)
    return library


def gpu_uuid(gpu: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{gpu:012x}"


def slice_uuid(gpu: int, number: int) -> str:
    return f"MIG-4d000000-0000-0000-0000-00000000{gpu:02x}{number:02x}"


class FakeMachine:
    """The GPUs of this process, and of those that it starts."""

    def __init__(self, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        load = ctypes.CDLL

        def loaded(name: Any, *args: Any, **kwargs: Any) -> Any:
            return load(str(library) if name == "libcuda.so.1" else name, *args, **kwargs)

        monkeypatch.setattr(ctypes, "CDLL", loaded)
        paths = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(paths))
        self.has(0)

    def has(
        self,
        gpus: int,
        visible: str | None = None,
        *,
        slices: int = 0,
        name: str = "NVIDIA H100 80GB HBM3",
        total_bytes: int = 85520809984,
        capability: str = "9.0",
    ) -> None:
        """Sets its GPUs anew.

        Args:
            gpus: How many there are.
            visible: ``CUDA_VISIBLE_DEVICES``; None: it is not set.
            slices: MIG slices of each GPU.
            name: Their product.
            total_bytes: The memory of each.
            capability: Their compute capability.
        """
        for variable, value in {
            "FAKE_GPUS": gpus,
            "FAKE_MIG_SLICES": slices,
            "FAKE_GPU_NAME": name,
            "FAKE_GPU_BYTES": total_bytes,
            "FAKE_GPU_CAPABILITY": capability,
        }.items():
            self._monkeypatch.setenv(variable, str(value))
        if visible is None:
            self._monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            self._monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        cuda_driver.cache_clear()
