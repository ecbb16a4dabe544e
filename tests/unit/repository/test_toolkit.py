"""What SGLang compiles with on a GPU is found, laid out from NVIDIA's wheels, or named with what installs it.

The wheels here are files without content, in a folder of this test's on the path of Python.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from sglang_omni import toolkit

WHEELS_LINE = "pip install 'cuda-toolkit[nvcc,cccl]==13.*'"


class Machine:
    """An environment that is called by its path, with all that is needed but a C++ compiler."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.system, self.own = folder / "system", folder / "env/bin"
        self.wheels = folder / "site/nvidia/cu13"
        self.cache = folder / "cache"
        self.program(self.system / "c++", "echo libcudart.so")
        self.program(self.own / "ninja")
        self.program(self.wheels / "bin/nvcc")
        for file in ("include/cuda_runtime.h", "nvvm/bin/cicc", "lib/libcudart.so.13"):
            (self.wheels / file).parent.mkdir(parents=True, exist_ok=True)
            (self.wheels / file).touch()
        self.version("nvcc", "13.0.88")
        self.version("runtime", "13.0.96")
        monkeypatch.syspath_prepend(folder / "site")
        monkeypatch.setattr(sys, "executable", str(self.own / "python"))
        monkeypatch.setattr(toolkit, "_DEFAULT", folder / "local/cuda")
        monkeypatch.setenv("PATH", str(self.system))
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.cache))
        self.home = folder / "home"
        monkeypatch.setenv("HOME", str(self.home))
        for name in ("CUDA_HOME", "CUDA_PATH", "CXX", "SGLANG_JIT_CACHE_DIR"):
            # Set first, so that what the test sets is taken away after it.
            monkeypatch.setenv(name, "")
            del os.environ[name]

    def program(self, file: Path, script: str = "") -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return file

    def version(self, wheel: str, version: str) -> None:
        name = f"nvidia_cuda_{wheel}"
        for old in (self.folder / "site").glob(f"{name}-*.dist-info/METADATA"):
            old.unlink()
            old.parent.rmdir()
        info = self.folder / f"site/{name}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: nvidia-cuda-{wheel}\nVersion: {version}\n"
        (info / "METADATA").write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def lacks() -> dict[str, str]:
    return {lack.name: lack.mend for lack in toolkit.lacks()}


def test_wheels_become_a_toolkit(machine: Machine) -> None:
    toolkit.provide()
    home = Path(os.environ["CUDA_HOME"])
    assert home.is_relative_to(machine.cache)
    assert (home / "lib64/libcudart.so").resolve() == machine.wheels / "lib/libcudart.so.13"
    for part in ("bin/nvcc", "include/cuda_runtime.h", "nvvm/bin/cicc"):
        assert (home / part).resolve() == machine.wheels / part
    # Programs of the system come before those of the environment.
    assert os.environ["PATH"] == f"{machine.system}{os.pathsep}{machine.own}"
    toolkit.provide()
    assert Path(os.environ["CUDA_HOME"]) == home
    assert os.environ["PATH"].count(str(machine.own)) == 1


@pytest.mark.usefixtures("fake_machine")
def test_the_driver_can_be_linked_to_by_the_name_that_linkers_ask_for(
    machine: Machine, fake_driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit.provide()
    link = Path(os.environ.pop("CUDA_HOME")) / "lib64/stubs/libcuda.so"
    assert link.resolve() == fake_driver
    # Another one was installed since.
    newer = machine.folder / "libcuda.so.1"
    monkeypatch.setattr(toolkit, "_driver", lambda: str(newer))
    toolkit.provide()
    assert link.readlink() == newer
    assert list(link.parent.iterdir()) == [link]


def test_processes_that_start_together_share_one(machine: Machine) -> None:
    barrier = threading.Barrier(8)
    homes: list[Path] = []

    def rank() -> None:
        barrier.wait(timeout=60)
        homes.append(toolkit._linked(machine.wheels))

    ranks = [threading.Thread(target=rank) for _ in range(8)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(timeout=60)
    assert len(homes) == 8
    (home,) = set(homes)
    assert list(home.parent.iterdir()) == [home]


@pytest.mark.parametrize("place", ["CUDA_HOME", "CUDA_PATH", "PATH", "default"])
def test_a_toolkit_that_sglang_finds_is_left_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    home = machine.folder / "toolkit"
    nvcc = machine.program(home / "bin/nvcc")
    (home / "lib64").mkdir()
    (home / "lib64/libcudart.so").touch()
    if place == "default":
        monkeypatch.setattr(toolkit, "_DEFAULT", home)
    elif place == "PATH":
        monkeypatch.setenv("PATH", f"{machine.system}{os.pathsep}{nvcc.parent}")
    else:
        monkeypatch.setenv(place, str(home))
    toolkit.provide()
    assert os.environ.get("CUDA_HOME") == (str(home) if place == "CUDA_HOME" else None)
    assert not machine.cache.exists()
    # CUDA's runtime may lie where the compiler looks anyway.
    (home / "lib64/libcudart.so").unlink()
    assert list(lacks()) == ["libcudart"]
    machine.program(machine.system / "c++", "echo /usr/lib/libcudart.so")
    assert lacks() == {}


def _no_ninja(machine: Machine) -> None:
    (machine.own / "ninja").unlink()


def _no_compiler(machine: Machine) -> None:
    (machine.system / "c++").unlink()


def _no_nvcc(machine: Machine) -> None:
    (machine.wheels / "bin/nvcc").unlink()


def _no_runtime(machine: Machine) -> None:
    (machine.wheels / "lib/libcudart.so.13").unlink()


def _newer_nvcc(machine: Machine) -> None:
    machine.version("nvcc", "13.5.37")


def _wrong_home(machine: Machine) -> None:
    os.environ["CUDA_HOME"] = str(machine.folder / "nowhere")


def _no_home(machine: Machine) -> None:
    machine.home.write_text("a file")


def _no_cache(machine: Machine) -> None:
    machine.cache.write_text("a file")


def _nobody(machine: Machine) -> None:
    """A user without a home."""
    os.environ["HOME"] = "~"


@pytest.mark.parametrize(
    ("breaks", "name", "mend"),
    [
        (_no_ninja, "ninja", "pip install ninja"),
        (_no_compiler, "c++", "apt-get install g++"),
        (_no_nvcc, "nvcc", WHEELS_LINE),
        (_no_runtime, "libcudart", WHEELS_LINE),
        (_newer_nvcc, "nvcc", WHEELS_LINE),
        (_wrong_home, "nvcc", "unset CUDA_HOME"),
        (_no_home, "HOME", "set HOME, or SGLANG_JIT_CACHE_DIR"),
        (_no_cache, "HOME", "set HOME, or SGLANG_JIT_CACHE_DIR"),
        (_nobody, "HOME", "set HOME, or SGLANG_JIT_CACHE_DIR"),
    ],
)
def test_what_is_missing_is_one_line_with_what_installs_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, breaks: object, name: str, mend: str
) -> None:
    # NVIDIA's wheels may be installed beside this test's.
    monkeypatch.setattr(sys, "path", [str(machine.folder / "site")])
    assert callable(breaks)
    breaks(machine)
    ((found, line),) = lacks().items()
    assert found == name
    assert line.startswith(mend)
    with pytest.raises(ImportError) as caught:
        toolkit.provide()
    said = str(caught.value)
    assert f" {name}: " in said
    assert mend in said
    assert "\n" not in said
