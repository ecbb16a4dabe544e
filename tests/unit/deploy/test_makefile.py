"""What the Makefile's targets would run on a fresh machine and after another target."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def make(*arguments: str, status: int = 0) -> str:
    """What is printed."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return tmp_path / "venv"


def planned(venv: Path, *arguments: str) -> str:
    return make("--dry-run", f"VENV={venv}", *arguments)


def installed(venv: Path, stamp: str) -> None:
    """As if uv, an environment and then the core were there."""
    (venv / "bin").mkdir(parents=True)
    for file in (venv / "bin" / "uv", venv / stamp):
        file.touch()


def test_help_lists_targets_with_what_they_do() -> None:
    shown = dict(re.findall(r"^([a-z-]+) {2,}(\S.*)$", make(), re.M))
    assert {"help", "demo", "serve", "test", "build", "wheel", "lock", "clean"} <= shown.keys()
    assert {"MODEL=qwen3-omni-tiny", "WHEEL=FILE"} <= set(re.findall(r"[\w-]+=[\w-]+", shown["demo"]))


def test_the_demo_installs_what_it_needs_and_no_more(venv: Path) -> None:
    plan = planned(venv, "demo")
    steps = [
        "preflight.sh demo",
        "Set-up 1/3",
        "Set-up 2/3",
        "demo_packages.sh",
        "Set-up 3/3",
        "maturin develop",
        "Demo:",
    ]
    found = [plan.index(step) for step in steps]
    assert found == sorted(found)
    assert "dev.lock" not in plan


@pytest.mark.parametrize("arguments", [("test",), ("build",), ("demo", "MODEL=qwen3-omni-tiny")])
def test_other_targets_install_everything(venv: Path, arguments: tuple[str, ...]) -> None:
    plan = planned(venv, *arguments)
    assert plan.count("dev.lock") == 1
    assert "demo_packages" not in plan


def test_a_demo_after_the_tests_installs_nothing(venv: Path) -> None:
    installed(venv, ".installed")
    plan = planned(venv, "demo", f"CORE={venv}/.installed")
    assert "pip" not in plan
    assert "sglang_omni.demo" in plan


def test_the_tests_after_a_demo_take_its_environment_over(venv: Path) -> None:
    installed(venv, ".demo")
    plan = planned(venv, "build")
    assert "Set-up 1/3" not in plan
    assert "pip uninstall" in plan
    assert "dev.lock" in plan


def test_a_wheel_needs_no_rust(venv: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "sgl_omni-0.1.0-cp311-abi3-linux_x86_64.whl"
    wheel.touch()
    plan = planned(venv, "demo", f"WHEEL={tmp_path}/*.whl")
    assert str(wheel) in plan
    assert not re.search(r"maturin|cargo|preflight\.sh demo .*(rust|cc)", plan)
    assert "none.whl: no such file" in make("--dry-run", "demo", f"WHEEL={tmp_path}/none.whl", status=2)


def test_a_wheel_stays_until_the_checkout_is_installed(venv: Path) -> None:
    installed(venv, ".demo")
    wheel = venv / "sgl_omni-0.1.0.whl"
    wheel.touch()
    stamp = venv / f".wheel-{wheel.name}"
    stamp.write_text(f"{wheel}\n")
    plan = planned(venv, "serve")
    assert "Set-up" not in plan
    assert f"speech-chat on a CPU from {wheel}" in plan
    wheel.unlink()
    assert f"WHEEL={wheel}: no such file" in make("--dry-run", f"VENV={venv}", "serve", status=2)
    plan = planned(venv, "build")
    assert "maturin develop" in plan
    assert f"rm -f {venv}/.wheel-*" in plan


def test_another_target_installs_the_checkout_after_a_wheel(venv: Path, tmp_path: Path) -> None:
    installed(venv, ".installed")
    uv, core, wheel = venv / "bin" / "uv", tmp_path / "core.so", tmp_path / "sgl_omni-0.1.0.whl"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    wheel.touch()
    core.touch()
    assert "maturin" not in planned(venv, "build", f"CORE={core}")
    make(f"VENV={venv}", f"CORE={core}", f"WHEEL={wheel}", "build")
    assert "maturin develop" in planned(venv, "build", f"CORE={core}")


@pytest.mark.parametrize("target", ["test-gpu", "bench-gpu", "test-kernels"])
def test_on_a_gpu_all_runs_in_the_environment_with_sglangs_kernels(
    venv: Path, tmp_path: Path, target: str
) -> None:
    gpu = tmp_path / "gpu"
    plan = planned(venv, target, f"GPU_VENV={gpu}")
    assert "requirements/cuda.lock" in plan
    assert "dev.lock" not in plan
    assert f"VIRTUAL_ENV={gpu} " in plan
    *_, runs = plan.splitlines()
    assert re.match(rf"{gpu}/bin/python (-m pytest|benches/gpu/run\.py)", runs)


def test_making_a_wheel_installs_maturin_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path / "venv", "wheel", f"MATURIN={tmp_path}/maturin")
    assert re.findall(r"-r (\S+)", plan) == ["requirements/maturin.lock"]
    assert "uv" not in re.findall(r"\w+", plan)


@pytest.mark.parametrize(
    ("arguments", "needed"), [((), True), (("MODEL=qwen3_tts",), True), (("MODEL=csm",), False)]
)
def test_a_comparison_installs_the_reference_that_it_needs(
    venv: Path, tmp_path: Path, arguments: tuple[str, ...], needed: bool
) -> None:
    installed(venv, ".installed")
    plan = planned(venv, "parity", *arguments, f"REFERENCE={tmp_path}/reference", f"CORE={venv}/.installed")
    assert ("requirements/qwen-tts.lock" in plan) == needed
