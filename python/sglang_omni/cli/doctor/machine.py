"""What ``sgl-omni doctor`` finds of this machine and its packages, a fact each, with what mends it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

from sglang_omni import diagnosis
from sglang_omni.cli.doctor.uses import use_findings
from sglang_omni.diagnosis import Finding, version_of
from sglang_omni.gpus import Gpu, NvmlUnknown, nvlink_pairs, visible_gpus
from sglang_omni.packages import DISTRIBUTION, install_line, tried_line, untried

_IMPORT_TIMEOUT_S = 300.0
_WANTED_FILES = 65_536
_WANTED_SHM_BYTES = 1 << 30

_TORCH_PROBE = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
found["archs"] = torch.cuda.get_arch_list()
try:
    torch.cuda.init()
except Exception as error:
    found["error"] = str(error).partition("\\n")[0]
print(json.dumps(found))
"""


def examine() -> list[Finding]:
    """All findings of this machine and environment. Imports torch and SGLang's kernels in other processes."""
    gpus = visible_gpus()
    checks: list[Callable[[], list[Finding]]] = [
        _python,
        _packages,
        diagnosis.driver_findings,
        lambda: _gpus(gpus),
        lambda: _torch(gpus),
        lambda: _sglang(gpus),
        lambda: _mps(gpus),
        lambda: _limits(gpus),
        _shared_memory,
        use_findings,
    ]
    findings: list[Finding] = []
    for check in checks:
        findings += check()
    return findings


def _python() -> list[Finding]:
    text = f"{platform.python_version()} ({sys.executable}), {platform.platform()}"
    return [Finding("ok", "python", text)]


def _packages() -> list[Finding]:
    """This package, and whether the packages that it needs are in the ranges that it was made for."""
    version = version_of(DISTRIBUTION)
    if version is None:
        return [Finding("warn", DISTRIBUTION, "not installed, only on the path of Python", "make wheel")]
    found = [Finding("ok", DISTRIBUTION, version)]
    for name in ("transformers", "tokenizers", "safetensors"):
        wanted = _range_of(name)
        installed = version_of(name)
        if installed is None:
            # No failure: a router needs none of them, and a model says what it needs as it starts.
            found.append(Finding("missing", name, "not installed", install_line("serve")))
        elif wanted and not _is_in(installed, wanted):
            found.append(
                Finding("fail", name, f"{installed} is not in {wanted}", f"pip install '{name}{wanted}'")
            )
        elif new := untried(name, installed):
            found.append(Finding("warn", name, f"{installed}, {new}", tried_line(name)))
        else:
            found.append(Finding("ok", name, f"{installed} (of {wanted})" if wanted else installed))
    return found


def _range_of(name: str) -> str:
    """The range of versions that this package requires, such as ``">=5.16,<6"``."""
    for line in importlib.metadata.requires(DISTRIBUTION) or ():
        match = re.match(rf"{re.escape(name)}\s*\(?([<>=!~][^;)]*)", line)
        if match:
            return match[1].replace(" ", "")
    return ""


def _is_in(version: str, wanted: str) -> bool:
    """Of bounds like ``>=5.16`` and ``<6``, which are all that this package has."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", text)[:3])

    have = numbers(version)
    return all(
        have >= numbers(bound) if bound.startswith(">=") else have < numbers(bound)
        for bound in wanted.split(",")
        if bound.startswith((">=", "<"))
    )


def _gpus(gpus: Sequence[Gpu]) -> list[Finding]:
    found = [
        Finding(
            "ok",
            f"GPU {gpu.index}",
            f"{gpu.name}, {gpu.total_bytes / 2**30:.0f} GiB, compute capability "
            f"{gpu.capability[0]}.{gpu.capability[1]}, {gpu.uuid}",
        )
        for gpu in gpus
    ]
    found += diagnosis.capability_findings(gpus)
    if len(gpus) > 1:
        try:
            pairs = nvlink_pairs([gpu.uuid for gpu in gpus])
            text = ", ".join(f"{a}-{b}" for a, b in pairs) or "none: --tp-size copies through PCIe"
        except NvmlUnknown as reason:
            text = f"unknown: {reason}"
        found.append(Finding("ok", "NVLink", text))
    return found


def _torch(gpus: Sequence[Gpu]) -> list[Finding]:
    if version_of("torch") is None:
        return [Finding("missing", "torch", "not installed", install_line("serve"))]
    if not gpus:
        built_for = diagnosis.torch_cuda_version()
        cuda = "for CPUs" if built_for is None else f"for CUDA {built_for[0]}.{built_for[1]}"
        return [_torch_finding(f"{version_of('torch')}, built {cuda}")]
    if wrong := diagnosis.torch_findings():
        return wrong
    output = _run(_TORCH_PROBE)
    if isinstance(output, Finding):
        return [output]
    state = json.loads(output)
    text = f"{state['version']}, built for CUDA {state['cuda']} and {' '.join(state['archs'])}"
    if not state["available"] or "error" in state:
        reason = state.get("error", "torch.cuda.is_available() is False")
        return [
            Finding("fail", "torch", f"{text}; it cannot use the GPUs: {reason}", "see the driver's line")
        ]
    unknown = [gpu for gpu in gpus if not _has_kernels(gpu.capability, state["archs"])]
    return [_torch_finding(text)] + [
        Finding(
            "fail",
            f"GPU {gpu.index}",
            f"torch has no kernels for compute capability {gpu.capability[0]}.{gpu.capability[1]}",
            "install a newer torch, or leave the GPU out with CUDA_VISIBLE_DEVICES",
        )
        for gpu in unknown
    ]


def _torch_finding(text: str) -> Finding:
    """Of a torch that works: ``text`` describes it."""
    if new := untried("torch", version_of("torch") or ""):
        return Finding("warn", "torch", f"{text}; {new}", tried_line("torch"))
    return Finding("ok", "torch", text)


def _has_kernels(capability: tuple[int, int], archs: Sequence[str]) -> bool:
    """True if kernels for one of ``archs`` run: of the same major version, and no newer minor one."""
    found = [match for arch in archs if (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", arch))]
    return any(
        (int(match[2]), int(match[3])) <= capability
        and (match[1] == "compute" or int(match[2]) == capability[0])
        for match in found
    )


def _sglang(gpus: Sequence[Gpu]) -> list[Finding]:
    version = version_of("sglang")
    if not gpus:
        text = "not installed, and not needed without a GPU" if version is None else version
        return [Finding("ok", "sglang", text)]
    findings = diagnosis.sglang_findings()
    if version is None:
        return findings
    found = [Finding("ok", "sglang", version), *findings]
    if any(finding.name == "sglang-kernel" and finding.status == "fail" for finding in findings):
        return found
    output = _run("import torch, sgl_kernel; print(sgl_kernel.__file__)", diagnosis.kernels_failure)
    if isinstance(output, Finding):
        return [*found, Finding("fail", "sgl_kernel", output.text, diagnosis.kernels_install_line())]
    return [*found, Finding("ok", "sgl_kernel", f"loads, from {output.strip()}")]


def _mps(gpus: Sequence[Gpu]) -> list[Finding]:
    if not gpus:
        return []
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        return [
            Finding(
                "warn",
                "MPS",
                "nvidia-cuda-mps-control is not installed: processes that share a GPU take turns",
                "install the driver's compute utilities (Ubuntu: apt-get install nvidia-compute-utils-580)",
            )
        ]
    return [Finding("ok", "MPS", program)]


def _limits(gpus: Sequence[Gpu]) -> list[Finding]:
    locked, files = (
        resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE)
    )
    unlimited = resource.RLIM_INFINITY
    found = []
    text = "unlimited" if locked == unlimited else f"{locked >> 10} KiB"
    if gpus and locked != unlimited:
        found.append(
            Finding(
                "warn",
                "locked memory (ulimit -l)",
                f"{text}: copies between shared memory and a GPU take a detour",
                "ulimit -l unlimited; in a container --ulimit memlock=-1",
            )
        )
    else:
        found.append(Finding("ok", "locked memory (ulimit -l)", text))
    if files != unlimited and files < _WANTED_FILES:
        found.append(
            Finding(
                "warn",
                "open files (ulimit -n)",
                f"{files}: so many connections and sockets of stages at most",
                f"ulimit -Hn {_WANTED_FILES}; in a container --ulimit nofile={_WANTED_FILES}",
            )
        )
    else:
        found.append(
            Finding("ok", "open files (ulimit -n)", "unlimited" if files == unlimited else str(files))
        )
    return found


def _shared_memory() -> list[Finding]:
    try:
        space = os.statvfs("/dev/shm")
    except OSError as error:
        return [Finding("warn", "/dev/shm", str(error), "mount -t tmpfs tmpfs /dev/shm")]
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    text = f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free"
    if total < _WANTED_SHM_BYTES:
        return [
            Finding(
                "warn",
                "/dev/shm",
                f"{text}: NCCL needs more for --tp-size",
                "in a container --shm-size 16g, or --ipc=host",
            )
        ]
    return [Finding("ok", "/dev/shm", text)]


def _last_line(printed: str) -> str:
    return printed.strip().splitlines()[-1]


def _run(code: str, reason: Callable[[str], str] = _last_line) -> str | Finding:
    """What a program prints in a Python of its own; a Finding with the reason for which it fails.

    Args:
        reason: The line to show, of what a program writes that fails.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding("fail", "torch", f"its import takes longer than {_IMPORT_TIMEOUT_S:.0f} s")
    if done.returncode == 0:
        return done.stdout
    text = reason(done.stderr.strip() or f"exit status {done.returncode}")
    return Finding("fail", "torch", text, install_line("serve"))
