"""The wheel as a user installs it: bare, in an environment of its own, without torch."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from sglang_omni.packages import DISTRIBUTION, install_line

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1 << 20


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    maturin = Path(sys.executable).with_name("maturin")
    run(maturin, "build", "--release", "--locked", "--out", out, cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel and its own dependencies, at the versions that are locked."""
    environment = tmp_path_factory.mktemp("bare") / "venv"
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    # Constraints carry no hashes for the wheel itself, so they are handed over without any.
    constraints = environment / "constraints.txt"
    lock = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    constraints.write_text(
        "\n".join(line.split(" ")[0] for line in lock if "==" in line and line[0].isalpha())
    )
    run(uv, "pip", "install", "--quiet", "--python", python, "--constraint", constraints, wheel)
    return python


def test_is_small_and_complete(wheel: Path) -> None:
    assert wheel.stat().st_size < 15 * MEGABYTE
    assert "cp311-abi3" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for part in (
        "_core.pyi",
        "py.typed",
        "_core.abi3.so",
        "cli/templates/chat/pipeline.yaml",
        "cli/templates/family/pyproject.toml",
    ):
        assert f"sglang_omni/{part}" in names
    for text in ("LICENSE", "NOTICE", "THIRD_PARTY_LICENSES.txt"):
        assert any(name.endswith(f".dist-info/licenses/{text}") for name in names), (
            f"{text} is not in the wheel"
        )


def test_it_works_where_nothing_else_is_installed(bare_python: Path) -> None:
    """What the public CI checks each platform's wheel with."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = run(bare_python, ROOT / "scripts/check_wheel.py", env=environment, cwd="/")
    assert done.stdout.splitlines() == ["ok files", "ok codec", "ok router", "ok shared memory"]


def test_source_distribution_is_small_and_complete(tmp_path: Path) -> None:
    run(Path(sys.executable).with_name("maturin"), "sdist", "--out", tmp_path, cwd=ROOT)
    (built,) = tmp_path.glob("sgl_omni-*.tar.gz")
    assert built.stat().st_size < 3 * MEGABYTE
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    licences = {"LICENSE", "NOTICE", "THIRD_PARTY_LICENSES.txt", "third_party_crates.cdx.json"}
    assert {"Cargo.lock", "Cargo.toml", "pyproject.toml", "README.md", "PKG-INFO", *licences} <= names
    assert {name.split("/")[0] for name in names if "/" in name} == {"python", "rust"}
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_bare_install_has_no_torch_and_starts(bare_python: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    listed = run(bare_python, "-m", "sglang_omni.cli", "--help", env=environment, cwd="/").stdout
    assert "route" in listed
    run(bare_python, "-m", "sglang_omni.launch_router", "--help", env=environment, cwd="/")
    code = (
        "import importlib.metadata, json, sglang_omni, sglang_omni.client, sglang_omni.serve\n"
        "print(json.dumps([d.metadata['Name'].lower() for d in importlib.metadata.distributions()]))"
    )
    installed = json.loads(run(bare_python, "-c", code, env=environment, cwd="/").stdout)
    assert "sgl-omni" in installed
    assert not {"torch", "transformers", "onnxruntime", "nvidia-cublas"} & set(installed)


def test_missing_extra_is_reported_as_the_install_line(bare_python: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [bare_python, "-m", "sglang_omni.launch_server", "--port", "0"],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        timeout=120,
    )
    assert done.returncode != 0
    assert "pip install" in done.stderr
    assert install_line("demo") in done.stderr
    assert "Traceback" not in done.stderr


# None of these is heavy, and no index has the wheel: what installs them must take it from the environment.
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_an_extra_is_added_to_the_installed_wheel(bare_python: Path, installer: str) -> None:
    line = shlex.split(install_line("nixl"))
    assert line[:2] == ["pip", "install"]
    uv = Path(sys.executable).with_name("uv")
    if installer == "pip":
        run(uv, "pip", "install", "--quiet", "--python", bare_python, "pip")
        done = run(bare_python, "-m", *line, "--dry-run", "--quiet", "--report", "-", cwd="/")
        added = {part["metadata"]["name"].lower() for part in json.loads(done.stdout)["install"]}
    else:
        done = run(uv, *line, "--dry-run", "--python", bare_python, cwd="/")
        added = set(re.findall(r"^ \+ ([\w-]+)==", done.stderr, re.MULTILINE))
    assert {"nixl", "torch"} <= added
    assert DISTRIBUTION not in added


def test_third_party_licences_are_current() -> None:
    run(sys.executable, ROOT / "scripts" / "third_party_licenses.py", "--check", cwd=ROOT)
