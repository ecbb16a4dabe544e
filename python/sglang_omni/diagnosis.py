"""What this machine lacks for stages on its GPUs, found without importing torch.

`sgl-omni serve` asks before it loads anything, `sgl-omni doctor` at any time.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sglang_omni import toolkit
from sglang_omni.gpus import Gpu
from sglang_omni.packages import install_line
from sglang_omni.relay.shm.cuda_driver import CudaError, NoCudaDriver, cuda_driver

# "missing" is what a machine need not have.
Status = Literal["ok", "missing", "warn", "fail"]

# CUDA's major version -> the first driver that serves it, and the oldest GPUs for which it compiles (CUDA's
# release notes; the compute capability).
_FIRST_DRIVER = {11: "450", 12: "525", 13: "580"}
_OLDEST_GPU = {11: (3, 5), 12: (5, 0), 13: (7, 5)}
# CUDA_ERROR_NO_DEVICE, of a driver on a machine without a GPU.
_NO_DEVICE = "(CUDA error 100)"
# Packages of SGLang whose kernels are compiled for its version, by what it calls them in its requirements.
_KERNELS = ("sglang-kernel", "flashinfer-python")


@dataclass(frozen=True)
class Finding:
    """
    Attributes:
        name: What was looked at, such as ``"driver"``.
        text: What it is.
        mend: The command, or the deed, that mends it; empty if it is as it should be.
    """

    status: Status
    name: str
    text: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" + (f"; fix it with: {self.mend}" if self.mend else "")


def driver_findings() -> list[Finding]:
    """The CUDA driver, beside the CUDA that torch was built for."""
    try:
        version = cuda_driver().cuda_version()
    except NoCudaDriver:
        return [Finding("ok", "driver", "no NVIDIA driver, so no GPU: stages run on the CPU")]
    except CudaError as error:
        if _NO_DEVICE in str(error):
            return [Finding("ok", "driver", "it has no GPU: stages run on the CPU")]
        return [
            Finding(
                "fail",
                "driver",
                f"it is installed, but does not work: {error}",
                "see what `nvidia-smi` says; a driver that was just updated needs a reboot",
            )
        ]
    built_for = torch_cuda_version()
    text = f"serves CUDA {version[0]}.{version[1]}"
    if built_for is None or version[0] >= built_for[0]:
        return [Finding("ok", "driver", text)]
    needed = _FIRST_DRIVER.get(built_for[0], f"one for CUDA {built_for[0]}")
    return [
        Finding(
            "fail",
            "driver",
            f"{text}, too old for torch, which is built for CUDA {built_for[0]}.{built_for[1]}",
            f"install NVIDIA driver {needed} or newer (https://www.nvidia.com/drivers)",
        )
    ]


def torch_findings() -> list[Finding]:
    """True if torch, as it is installed, was built for GPUs. Call it if there are some."""
    if version_of("torch") is None:
        return [Finding("fail", "torch", "not installed", install_line("serve"))]
    if torch_cuda_version() is None:
        return [
            Finding(
                "fail",
                "torch",
                f"{version_of('torch')} is built for CPUs alone, but there are GPUs",
                "pip install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cu130",
            )
        ]
    return []


def capability_findings(gpus: Sequence[Gpu]) -> list[Finding]:
    """GPUs that are too old for torch's CUDA."""
    built_for = torch_cuda_version()
    if built_for is None:
        return []
    oldest = _OLDEST_GPU.get(built_for[0], (0, 0))
    return [
        Finding(
            "fail",
            f"GPU {gpu.index}",
            f"{gpu.name} has compute capability {_dotted(gpu.capability)}, but torch for CUDA "
            f"{_dotted(built_for)} has kernels from {_dotted(oldest)} on",
            f"leave it out with CUDA_VISIBLE_DEVICES, or install torch for CUDA {built_for[0] - 1}",
        )
        for gpu in gpus
        if gpu.capability < oldest
    ]


def sglang_findings() -> list[Finding]:
    """SGLang, the packages of its kernels, as its own requirements name them, and what it compiles with.

    Call it if there are GPUs.
    """
    if version_of("sglang") is None:
        return [Finding("warn", "sglang", "not installed: stages on GPUs need it", install_line("sglang"))]
    found: list[Finding] = []
    for name, wanted in _pinned_by_sglang():
        installed = version_of(name)
        if installed is None or installed != wanted:
            state = "not installed" if installed is None else f"{installed} is installed"
            found.append(
                Finding(
                    "fail" if installed is None or _numbers(installed) < _numbers(wanted) else "warn",
                    name,
                    f"{state}; SGLang {version_of('sglang')} needs {wanted} on a GPU",
                    f"pip install '{name}=={wanted}'",
                )
            )
    # On every GPU: SGLang compiles kernels of each decode step, whatever its attention is.
    found += [Finding("fail", *lack) for lack in toolkit.lacks()]
    return found


def kernels_install_line() -> str:
    """The command that installs the kernels of the installed SGLang."""
    return " ".join(
        [
            "pip install",
            *(f"'{name}=={version}'" for name, version in _pinned_by_sglang() if name == _KERNELS[0]),
        ]
    )


def kernels_failure(printed: str) -> str:
    """The line that says why SGLang's kernels do not load, of the many that their package writes."""
    lines = [line.strip(" -") for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"\w+Error: \S", line)]
    return (errors or lines[-1:])[0]


def torch_cuda_version() -> tuple[int, int] | None:
    """The CUDA that torch was built for, read from its files; None without torch, or if it is for CPUs."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda[^=]*=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else None


def version_of(name: str) -> str | None:
    """The version of an installed package, which is not imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pinned_by_sglang() -> Iterator[tuple[str, str]]:
    """The packages of kernels with the versions that the installed SGLang requires."""
    for line in importlib.metadata.requires("sglang") or ():
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*==\s*([\w.]+)\s*$", line)
        if match and (name := match[1].replace("_", "-").lower()) in _KERNELS:
            yield name, match[2]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
