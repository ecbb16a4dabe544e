"""The Dockerfile: what its images run, as whom, and that nothing of the build is left in them."""

from __future__ import annotations

import re
import tomllib

import pytest
from deployed import DOCKERFILE, ROOT, command, image

from sglang_omni.serve.front.auth import OPEN_PATHS

SERVERS = ("cpu", "cuda")
IMAGES = (*SERVERS, "router")


@pytest.mark.parametrize("target", IMAGES)
def test_options_exist_and_the_port_is_reported(target: str) -> None:
    subcommand, options = command(target, ["Qwen/Qwen3-0.6B"] if target in SERVERS else [])
    assert subcommand == ("serve" if target in SERVERS else "route")
    assert str(options.port) == image(target)["EXPOSE"]


@pytest.mark.parametrize("target", IMAGES)
def test_health_is_asked_for_where_it_is_reported_without_a_key(target: str) -> None:
    port, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)'", image(target)["HEALTHCHECK"])[0]
    assert port == image(target)["EXPOSE"]
    assert path in (OPEN_PATHS if target in SERVERS else {"/liveness"})


@pytest.mark.parametrize("target", IMAGES)
def test_it_does_not_run_as_root(target: str) -> None:
    assert image(target)["USER"] == "1000:1000"


@pytest.mark.parametrize("target", IMAGES)
def test_no_build_tools_are_left(target: str) -> None:
    installed = {
        package
        for step in image(target)["RUN"]
        for found in re.findall(r"--no-install-recommends (.+?) +&&", step)
        for package in found.split()
    }
    # SGLang and Triton need a compiler at run time.
    assert installed == {"tini", *(("g++", "libc6-dev") if target == "cuda" else ())}
    assert not any("pip install" in step for step in image(target)["RUN"])


def test_the_cuda_image_has_what_sglang_compiles_with() -> None:
    """ninja, and a compiler that goes with CUDA's headers, beside the C++ compiler above."""
    lock = (ROOT / "requirements/cuda.lock").read_text()
    pins = re.findall(r"^([\w.-]+)==(\S+)(.*)", lock, re.M)
    versions = {name: version for name, version, marker in pins if "== 'darwin'" not in marker}
    assert "ninja" in versions
    parts = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
    assert {versions[part].rpartition(".")[0] for part in parts} == {"13.0"}


def test_the_context_has_what_the_wheel_is_built_from() -> None:
    kept = {
        line[1:]
        for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert [name for name in kept if not (ROOT / name).exists()] == []
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    assert [name for name in workspace if not any(name.startswith(folder) for folder in kept)] == []
    copied = re.findall(r"^COPY (requirements/\S+)", DOCKERFILE.read_text(), re.M)
    assert set(copied) <= kept


def test_tools_have_the_versions_of_the_lock() -> None:
    text = DOCKERFILE.read_text()
    lock = (ROOT / "requirements/dev.lock").read_text()
    found = {
        *re.findall(r"pip install (maturin==\S+)", text),
        *(f"uv=={v}" for v in re.findall(r"ARG UV=(\S+)", text)),
    }
    assert {each.partition("==")[0] for each in found} == {"maturin", "uv"}
    assert [each for each in found if f"\n{each} " not in lock] == []
