"""The public CI: its actions are pinned, it may do little, and it runs what `.ci/run` and make have."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())


def workflow(name: str) -> Any:
    return yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())


def steps(name: str) -> list[Any]:
    return list(chain.from_iterable(job["steps"] for job in workflow(name)["jobs"].values()))


def test_there_is_one_for_each_task() -> None:
    assert [path.stem for path in FILES] == ["docs", "lint", "test", "wheels"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used
    pinned = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [each for each in used if not pinned.fullmatch(each)] == []


def test_an_action_has_one_version() -> None:
    used = {each for path in FILES for each in re.findall(r"uses: (\S+)", path.read_text())}
    assert len({each.split("@")[0] for each in used}) == len(used)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_what_publishes_may_write(path: Path) -> None:
    read = yaml.safe_load(path.read_text())
    assert read["permissions"] == {"contents": "read"}
    assert {name for name, job in read["jobs"].items() if "permissions" in job} <= {"publish"}
    assert all(job["timeout-minutes"] <= 120 for job in read["jobs"].values())


def test_it_runs_what_ci_runs() -> None:
    (targets,) = re.findall(r"targets=\((\w.*)\)$", (ROOT / ".ci/run").read_text(), re.M)
    assert workflow("test")["jobs"]["test"]["strategy"]["matrix"]["target"] == targets.split()
    assert any(step.get("run") == '.ci/run "$TARGET"' for step in steps("test"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake ([a-z-]+)", path.read_text())) - targets == set()


def test_rust_has_one_version_everywhere() -> None:
    """In workflows, in wheels' containers and in images: new enough for the crates, and the same."""
    texts = [*FILES, ROOT / "pyproject.toml", ROOT / "deploy/docker/Dockerfile"]
    found = {
        version
        for path in texts
        for version in re.findall(
            r"(?:toolchain install |default-toolchain |FROM rust:)(\d+\.\d+)", path.read_text()
        )
    }
    (version,) = found
    minimum = CARGO["workspace"]["package"]["rust-version"]
    assert tuple(map(int, version.split("."))) >= tuple(map(int, minimum.split(".")))


def test_its_tools_have_the_versions_that_are_checked_here() -> None:
    """`make lint-deploy` reads the wheels' settings with the cibuildwheel that will build them."""
    run = " ".join(step.get("run", "") for step in steps("wheels"))
    pinned = set(re.findall(r"pipx run (\w+==[\d.]+)", run))
    lock = (ROOT / "requirements/deploy.lock").read_text()
    assert {each.partition("==")[0] for each in pinned} == {"cibuildwheel", "build"}
    assert [each for each in pinned if f"\n{each} " not in lock] == []


def test_wheels_are_built_once_and_checked_on_the_oldest_and_newest_python() -> None:
    settings = PYPROJECT["tool"]["cibuildwheel"]
    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=").replace(".", "")
    assert settings["build"][0] == f"cp{oldest}-*"
    assert f"abi3-py{oldest}" in (ROOT / "rust/python/Cargo.toml").read_text()
    script = settings["test-command"].removeprefix("python {project}/")
    assert (ROOT / script).is_file()
    assert any(script in step.get("run", "") for step in steps("wheels"))


def test_every_file_is_published_and_nothing_else() -> None:
    jobs = workflow("wheels")["jobs"]
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    uploaded = [step["with"] for step in steps("wheels") if "upload-artifact" in step.get("uses", "")]
    assert [each["path"] for each in uploaded] == ["dist/*.whl", "dist/*.tar.gz"]
    assert all(each["name"].startswith("dist-") for each in uploaded)
