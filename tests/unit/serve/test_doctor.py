"""`sgl-omni doctor` and the check before a start, on this machine and on ones with GPUs of this test's."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_omni import diagnosis, toolkit
from sglang_omni.cli import doctor
from sglang_omni.cli.doctor import machine as examined
from sglang_omni.config import PipelineConfig, StageConfig
from sglang_omni.config.plan.pipeline import PipelinePlan, plan_pipeline
from sglang_omni.gpus import Gpu, NvmlUnknown, nvlink_pairs
from sglang_omni.relay.shm.cuda_driver import CudaError, NoCudaDriver
from sglang_omni.serve.launch import preflight
from sglang_omni.serve.launch.pipelines import LaunchError

COMMAND = Path(sys.executable).with_name("sgl-omni")
H100 = Gpu(0, "GPU-1", "NVIDIA H100 80GB HBM3", 85_000_000_000, (9, 0))
A100 = Gpu(1, "GPU-2", "NVIDIA A100-SXM4-40GB", 42_000_000_000, (8, 0))
V100 = Gpu(1, "GPU-3", "Tesla V100-SXM2-16GB", 16_000_000_000, (7, 0))


class Driver:
    def __init__(self, cuda: tuple[int, int]) -> None:
        self.cuda = cuda

    def cuda_version(self) -> tuple[int, int]:
        return self.cuda


class Machine:
    """A machine with everything for its GPUs, of which tests take something away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver: Driver | CudaError = Driver((13, 0))
        self.gpus = [H100]
        self.versions = {"sglang": "0.5.23", "sglang-kernel": "0.4.10", "flashinfer-python": "0.7.2"}
        self.lacks: list[toolkit.Lack] = []
        self.probes: dict[str, str | examined.Finding] = {
            "sgl_kernel": "/site/sgl_kernel/__init__.py\n",
            "torch": self.torch(),
        }
        versions = diagnosis.version_of

        def version_of(name: str) -> str | None:
            own = ("sglang", "sglang-kernel", "flashinfer-python", "flashinfer-jit-cache")
            return self.versions.get(name) if name in own else versions(name)

        for module in (diagnosis, examined):
            monkeypatch.setattr(module, "version_of", version_of)
        monkeypatch.setattr(diagnosis, "cuda_driver", self.cuda_driver)
        monkeypatch.setattr(diagnosis, "torch_cuda_version", lambda: (13, 0))
        monkeypatch.setattr(toolkit, "lacks", lambda: self.lacks)
        monkeypatch.setattr(examined, "visible_gpus", lambda: self.gpus)
        monkeypatch.setattr(preflight, "visible_gpus", lambda: self.gpus)
        monkeypatch.setattr(examined, "_run", self.run)

    def run(self, code: str, reason: object = None) -> str | examined.Finding:
        return self.probes["sgl_kernel" if "sgl_kernel" in code else "torch"]

    def cuda_driver(self) -> Driver:
        if isinstance(self.driver, CudaError):
            raise self.driver
        return self.driver

    @staticmethod
    def torch(**fields: object) -> str:
        state = {"version": "2.14.1+cu130", "cuda": "13.0", "available": True, "archs": ["sm_80", "sm_90"]}
        return json.dumps({**state, **fields})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    if "sglang-kernel==0.4.10" not in (importlib.metadata.requires("sglang") or ()):
        pytest.skip("made for the requirements of SGLang 0.5.23")
    return Machine(monkeypatch)


def plan(gpu: int | None = 0) -> PipelinePlan:
    stage = StageConfig(name="a", factory="m.f", process="a", terminal=True, gpu=gpu)
    return plan_pipeline(PipelineConfig(model_path="m", stages=[stage]))


def problems() -> dict[str, tuple[str, str]]:
    """What the doctor finds wrong: name -> what it says, and what mends it."""
    return {
        finding.name: (f"{finding.status}: {finding.text}", finding.mend)
        for finding in examined.examine()
        if finding.status in ("warn", "fail")
        and finding.name not in ("MPS", "/dev/shm")
        and "ulimit" not in finding.name
    }


def test_the_command_on_this_machine() -> None:
    done = subprocess.run([COMMAND, "doctor"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == any(line.startswith("FAIL") for line in lines), done.stdout
    assert all(line[:4] in ("ok  ", "-   ", "warn", "FAIL", "    ") for line in lines)
    assert any("python: " in line for line in lines)
    reported = subprocess.run([COMMAND, "doctor", "--json"], capture_output=True, text=True, check=False)
    findings = json.loads(reported.stdout)
    assert reported.returncode == done.returncode
    assert {"python", "sgl-omni", "transformers", "driver", "torch", "/dev/shm"} <= {
        f["name"] for f in findings
    }
    assert all(finding["mend"] for finding in findings if finding["status"] == "fail")


def test_a_machine_that_only_routes_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a router nor the demo needs what a model does."""
    absent = ("torch", "transformers", "tokenizers", "safetensors", "sglang")
    versions = examined.version_of
    for module in (diagnosis, examined):
        monkeypatch.setattr(module, "version_of", lambda name: None if name in absent else versions(name))
    monkeypatch.setattr(examined, "visible_gpus", lambda: [])
    found = {finding.name: finding.status for finding in examined.examine()}
    assert {name: found[name] for name in absent[:4]} == dict.fromkeys(absent[:4], "missing")
    assert "fail" not in found.values()
    assert doctor.main([]) == 0


def test_a_machine_that_lacks_nothing(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems() == {}
    assert doctor.main([]) == 0
    said = capsys.readouterr().out
    assert "GPU 0: NVIDIA H100 80GB HBM3, 79 GiB, compute capability 9.0, GPU-1" in said
    assert "sgl_kernel: loads, from /site" in said
    preflight.check_gpus(plan())


def test_a_machine_without_a_gpu(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.gpus, machine.versions = [], {}
    for driver in (NoCudaDriver("no"), CudaError("cuInit: no CUDA-capable device (CUDA error 100)")):
        machine.driver = driver
        assert problems() == {}
        assert any("stages run on the CPU" in finding.text for finding in examined.examine())
        preflight.check_gpus(plan(None))
    assert caplog.text == ""


def _old_driver(machine: Machine) -> None:
    machine.driver = Driver((12, 8))


def _broken_driver(machine: Machine) -> None:
    machine.driver = CudaError(
        "cuInit: system has unsupported display driver / cuda driver combination (803)"
    )


def _old_gpu(machine: Machine) -> None:
    machine.gpus = [V100]
    machine.probes["torch"] = machine.torch(archs=["sm_70"])


def _no_kernels(machine: Machine) -> None:
    del machine.versions["sglang-kernel"]


def _old_kernels(machine: Machine) -> None:
    machine.versions["sglang-kernel"] = "0.4.9"


def _newer_kernels(machine: Machine) -> None:
    machine.versions["sglang-kernel"] = "0.4.10.post1"


def _no_sglang(machine: Machine) -> None:
    machine.versions = {}


def _no_compiler(machine: Machine) -> None:
    machine.lacks = [toolkit.Lack("c++", "c++ is not found", "apt-get install g++")]


def _torch_cannot(machine: Machine) -> None:
    machine.probes["torch"] = machine.torch(available=False, error="CUDA driver initialization failed")


def _torch_without_kernels(machine: Machine) -> None:
    machine.probes["torch"] = machine.torch(archs=["sm_80", "sm_100"])


def _kernels_do_not_load(machine: Machine) -> None:
    machine.probes["sgl_kernel"] = examined.Finding(
        "fail", "torch", "ImportError: libcudart.so.13: no such file"
    )


@pytest.mark.parametrize(
    ("breaks", "name", "text", "mend", "serves"),
    [
        (_old_driver, "driver", "fail: serves CUDA 12.8, too old.* CUDA 13.0", "NVIDIA driver 580", False),
        (_broken_driver, "driver", "fail: it is installed, but does not work: cuInit", "nvidia-smi", False),
        (_old_gpu, "GPU 1", "fail: .*V100.* 7.0, but torch for CUDA 13.0 .*7.5", "VISIBLE_DEVICES", False),
        (_no_kernels, "sglang-kernel", "fail: not installed; SGLang 0.5.23 needs 0.4.10", "kernel==", True),
        (_old_kernels, "sglang-kernel", "fail: 0.4.9 is installed", "'sglang-kernel==0.4.10'", True),
        (_newer_kernels, "sglang-kernel", "warn: 0.4.10.post1 is installed", "pip install", True),
        (_no_sglang, "sglang", "warn: not installed", "sgl-omni[sglang]", True),
        (_no_compiler, "c++", "fail: .*is not found", "apt-get install g++", True),
        (_torch_cannot, "torch", "fail: .* cannot use the GPUs: CUDA driver init", "driver", None),
        (_torch_without_kernels, "GPU 0", "fail: torch has no kernels for .* 9.0", "newer torch", None),
        (_kernels_do_not_load, "sgl_kernel", "fail: ImportError: libcudart", "sglang-kernel==0.4.10", None),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_with_what_mends_it(
    machine: Machine,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    breaks: Callable[[Machine], None],
    name: str,
    text: str,
    mend: str,
    serves: bool | None,
) -> None:
    """``serves``: whether a server starts, with the line in its log; None if only torch could tell it."""
    breaks(machine)
    said, line = problems()[name]
    assert re.match(text, said), said
    assert mend in line
    assert doctor.main([]) == said.startswith("fail")
    assert f"-> {line}" in capsys.readouterr().out
    wanted = plan(machine.gpus[-1].index)
    if serves is False:
        with pytest.raises(LaunchError, match=re.escape(line)):
            preflight.check_gpus(wanted)
    else:
        preflight.check_gpus(wanted)
        assert (line in caplog.text) is bool(serves)


def test_a_broken_driver_is_reported_to_those_who_get_the_cpu_instead(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    _broken_driver(machine)
    preflight.check_gpus(plan(None))
    assert "does not work: cuInit" in caplog.text


def test_nvlink_without_nvml() -> None:
    with pytest.raises(NvmlUnknown, match=r"nvidia-ml-py is not installed|NVML does not report it"):
        nvlink_pairs(["GPU-1", "GPU-2"])


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((8, 9), ["sm_80", "sm_90"], True),
        ((9, 0), ["sm_80"], False),
        ((8, 0), ["sm_86"], False),
        ((10, 3), ["sm_100"], True),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
    ],
)
def test_kernels_of_torch(capability: tuple[int, int], archs: list[str], runs: bool) -> None:
    assert examined._has_kernels(capability, archs) is runs


def test_the_range_of_a_requirement() -> None:
    assert examined._is_in("5.19.0", ">=5.16,<6")
    assert not examined._is_in("6.0.0", ">=5.16,<6")
    assert not examined._is_in("5.9", ">=5.16,<6")
