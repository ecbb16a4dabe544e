"""scripts/preflight.sh tells each thing that a machine lacks, with the line that mends it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "preflight.sh"
NEEDS = ("linux", "bash", "python", "rust", "cc")
RUSTUP = "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"


class Machine:
    """A PATH of programs that answer as told; it begins as a machine that lacks nothing."""

    def __init__(self, folder: Path, system: str = "Linux") -> None:
        self.bin = folder / "bin"
        self.home = folder / "home"
        for made in (self.bin, self.home):
            made.mkdir()
        for tool in ("awk", "bash", "df", "dirname", "mktemp", "rm", "sed", "sh"):
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)
        self.program("uname", f"echo {system}")
        self.program("id", "echo 1000")
        self.program("cargo", "echo cargo 1.95.0")
        self.program("rustc", "echo 'rustc 1.95.0 (f2d3ce0bd 2026-03-21)'")
        self.program("cc", "exit 0")
        self.python("python3", "3.12")

    def program(self, name: str, script: str) -> None:
        file = self.bin / name
        file.unlink(missing_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def python(self, name: str, version: str, *, venv: bool = True) -> None:
        self.program(name, f'case "$2" in *ensurepip*) exit {int(not venv)} ;; *) echo {version} ;; esac')

    def without(self, *names: str) -> Machine:
        for name in names:
            (self.bin / name).unlink()
        return self

    def check(self, *needs: str, goal: str = "demo", **environment: str) -> tuple[int, str]:
        """The exit status and the text for a person."""
        done = subprocess.run(
            ["/bin/sh", SCRIPT, goal, *needs],
            env={"PATH": str(self.bin), "HOME": str(self.home), **environment},
            cwd=self.home,
            capture_output=True,
            text=True,
        )
        assert done.stdout == ""
        return done.returncode, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_a_machine_that_lacks_nothing_is_reported_nothing(machine: Machine) -> None:
    assert machine.check(*NEEDS, "disk=1") == (0, "")


def test_this_machine_lacks_nothing() -> None:
    done = subprocess.run(["/bin/sh", SCRIPT, "test", *NEEDS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_everything_is_reported_at_once(machine: Machine) -> None:
    status, text = machine.without("python3", "cargo", "rustc", "cc", "bash").check(*NEEDS, "disk=999999999")
    assert status == 1
    assert lines(text)[0] == "This machine lacks for `make demo`:"
    found = [text.index(what) for what in ("bash", "Python 3", "Rust 1", "a C compiler", "MB of free disk")]
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("manager", "python", "compiler"),
    [
        (
            "apt-get",
            "sudo apt-get install python3.13 python3.13-venv",
            "sudo apt-get install build-essential",
        ),
        ("dnf", "sudo dnf install python3.13", "sudo dnf install gcc"),
        (
            None,
            "install it with your system's package manager",
            "install it with your system's package manager",
        ),
    ],
)
def test_lines_are_those_of_the_system(
    machine: Machine, manager: str | None, python: str, compiler: str
) -> None:
    if manager:
        machine.program(manager, "exit 1")
    _, text = machine.without("python3", "cc").check(*NEEDS)
    assert python in text
    assert compiler in text


@pytest.mark.parametrize(
    ("system", "line"), [("Darwin", "container or virtual machine"), ("MINGW64_NT", "wsl --install")]
)
def test_another_system_is_reported_where_it_runs(tmp_path: Path, system: str, line: str) -> None:
    status, text = Machine(tmp_path, system).without("python3", "cc").check(*NEEDS)
    assert status == 1
    assert len(lines(text)) == 3
    assert "Linux" in lines(text)[1]
    assert line in lines(text)[2]


def test_root_needs_no_sudo(machine: Machine) -> None:
    machine.program("id", "echo 0")
    machine.program("apt-get", "exit 1")
    assert "apt-get install build-essential" in lines(machine.without("cc").check("cc")[1])


def test_apt_is_asked_for_the_newest_python_that_it_has(machine: Machine) -> None:
    machine.program("apt-get", "exit 1")
    machine.program("apt-cache", '[ "$2" = python3.12-venv ]')
    _, text = machine.without("python3").check("python")
    assert "sudo apt-get install python3.12 python3.12-venv, then make demo PYTHON=python3.12" in lines(text)


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.15"])
def test_another_python_that_is_there_is_named(machine: Machine, version: str) -> None:
    machine.python("python3", version)
    machine.python("python3.11", "3.11")
    machine.python("python3.12", "3.12")
    status, text = machine.check("python", goal="test")
    assert status == 1
    assert f"Python 3.11 to 3.14 (python3 is {version})" in lines(text)
    assert "make test PYTHON=python3.12" in lines(text)


def test_python_without_venv(machine: Machine) -> None:
    machine.python("python3", "3.11", venv=False)
    machine.program("apt-get", "exit 1")
    _, text = machine.check("python")
    assert lines(text)[1:] == [
        "Python's venv and ensurepip, which make an environment",
        "sudo apt-get install python3.11-venv",
    ]


def test_the_python_that_was_asked_for_is_checked(machine: Machine) -> None:
    _, text = machine.check("python", PYTHON="python3.9")
    assert "Python 3.11 to 3.14 (python3.9 is not there)" in lines(text)


def test_rust_is_missing(machine: Machine) -> None:
    _, text = machine.without("cargo", "rustc").check("rust")
    assert lines(text)[1:] == [
        "Rust 1.88 or later",
        RUSTUP,
        '. "$HOME/.cargo/env"',
        "With a ready wheel of sgl-omni neither Rust nor a compiler is needed: make demo WHEEL=FILE.whl",
    ]


def test_rust_is_there_but_not_on_the_path(machine: Machine) -> None:
    cargo = machine.home / ".cargo" / "bin" / "cargo"
    cargo.parent.mkdir(parents=True)
    cargo.symlink_to("/bin/sh")
    _, text = machine.without("cargo", "rustc").check("rust")
    assert lines(text)[1:] == ["cargo on the PATH", '. "$HOME/.cargo/env"']


@pytest.mark.parametrize(("rustup", "line"), [(True, "rustup update stable"), (False, RUSTUP)])
def test_rust_is_too_old(machine: Machine, rustup: bool, line: str) -> None:
    machine.program("rustc", "echo 'rustc 1.70.0 (90c541806 2023-05-31)'")
    if rustup:
        machine.program("rustup", "exit 0")
    _, text = machine.check("rust")
    assert "Rust 1.88 or later (this is rustc 1.70.0 (90c541806 2023-05-31))" in lines(text)
    assert line in lines(text)


def test_rustup_without_a_toolchain(machine: Machine) -> None:
    machine.program("rustc", "echo error: no default toolchain >&2; exit 1")
    assert "rustup default stable" in lines(machine.check("rust")[1])


def test_a_compiler_without_the_c_library(machine: Machine) -> None:
    machine.program("cc", "exit 1")
    status, text = machine.check("cc", goal="wheel")
    assert status == 1
    assert "a C compiler (cc) that makes programs" in lines(text)
    assert "WHEEL" not in text


def test_a_small_disk(machine: Machine) -> None:
    machine.program("df", "echo header; echo tmpfs 2048 1024 1048576 1% /work")
    assert machine.check("disk=1024") == (0, "")
    _, text = machine.check("disk=3000")
    assert lines(text)[1:] == [
        "3000 MB of free disk for this folder",
        ". has 1024 MB: free 1976 MB, or go to a larger disk",
    ]


def test_a_small_disk_of_the_cache(machine: Machine, tmp_path: Path) -> None:
    machine.program(
        "df",
        f'echo header; case "$2" in {tmp_path}) echo b 9 9 2048 1% / ;; *) echo a 9 9 4096000 1% / ;; esac',
    )
    _, text = machine.check("disk=3000", UV_CACHE_DIR=str(tmp_path / "not" / "made"))
    assert lines(text)[1:] == [
        "3000 MB of free disk for uv's cache, which another disk can hold: export UV_CACHE_DIR=FOLDER",
        f"{tmp_path} has 2 MB: free 2998 MB, or go to a larger disk",
    ]


def test_an_unknown_need_is_a_mistake_of_the_makefile(machine: Machine) -> None:
    assert machine.check("ruby") == (2, "preflight.sh: no such need: ruby\n")


def test_versions_are_those_of_the_projects() -> None:
    text = SCRIPT.read_text()
    versions = dict(re.findall(r"^(OLDEST_\w+)=(\d+)", text, re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert project["requires-python"] == f">=3.{versions['OLDEST_PYTHON']}"
    assert cargo["workspace"]["package"]["rust-version"] == f"1.{versions['OLDEST_RUST']}"
