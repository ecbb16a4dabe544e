"""`.ci/run`: what fails of Python's tests runs once more, alone, and two tests at most may need that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

RUN = Path(__file__).parents[3] / ".ci/run"

# Fails as make does when a recipe ends with a status, after pytest has kept what failed.
MAKE = """#!/bin/bash
read -r status recipe < "failures/$1" || exit 0
mkdir -p .pytest_cache/v/cache
[ -e "failures/$1.tests" ] && cp "failures/$1.tests" .pytest_cache/v/cache/lastfailed
echo "make: *** [Makefile:121: $recipe] Error $status" >&2
exit 2
"""
PYTEST = """#!/bin/bash
echo "$SGLANG_OMNI_TEST_ALL $*" >> again
exit "$(cat status)"
"""


@dataclass
class Checkout:
    """A folder with `.ci/run`, and programs that play make and pytest."""

    root: Path

    def fails(self, target: str, recipe: str, status: int, tests: Sequence[str]) -> None:
        (self.root / "failures" / target).write_text(f"{status} {recipe}\n")
        (self.root / "failures" / f"{target}.tests").write_text(json.dumps(dict.fromkeys(tests, True)))

    def run(self, *targets: str, status: int = 0) -> tuple[int, list[str]]:
        """The status of `.ci/run` and the tests that it prints as flaky, if what is run again ends so."""
        (self.root / "status").write_text(str(status))
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        ended = subprocess.run(
            [self.root / ".ci/run", *targets], env=os.environ | {"PATH": path}, capture_output=True, text=True
        )
        return ended.returncode, [
            line.removeprefix("FLAKY ") for line in ended.stdout.splitlines() if line.startswith("FLAKY ")
        ]

    @property
    def again(self) -> list[str]:
        path = self.root / "again"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for name in (".ci", "bin", ".venv/bin", "failures"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(RUN, tmp_path / ".ci/run")
    for name, program in {"bin/make": MAKE, ".venv/bin/python": PYTEST}.items():
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    for target in ("test", "test-long", "lint"):
        (tmp_path / "failures" / target).touch()
    return Checkout(tmp_path)


def test_nothing_runs_again_without_a_failure(checkout: Checkout) -> None:
    assert checkout.run() == (0, [])
    assert checkout.again == []


def test_two_tests_may_need_a_second_run(checkout: Checkout) -> None:
    checkout.fails("test", "test-python", 1, ["tests/a.py::first"])
    checkout.fails("test-long", "test-long", 1, ["tests/b.py::second[a b]"])
    assert checkout.run() == (0, ["tests/a.py::first", "tests/b.py::second[a b]"])
    assert checkout.again == ["1 -m pytest --last-failed --last-failed-no-failures none"] * 2


def test_what_fails_twice_has_failed(checkout: Checkout) -> None:
    checkout.fails("test", "test-python", 1, ["tests/a.py::first"])
    assert checkout.run(status=1) == (1, [])


def test_three_failures_are_no_accident(checkout: Checkout) -> None:
    checkout.fails("test", "test-python", 1, ["first", "second"])
    checkout.fails("test-long", "test-long", 1, ["third"])
    assert checkout.run() == (1, [])
    assert len(checkout.again) == 1


@pytest.mark.parametrize(
    ("recipe", "status"), [("test-python", 2), ("test-python", 4), ("lint", 1), ("test-rust", 1)]
)
def test_only_tests_of_a_whole_run_are_run_again(checkout: Checkout, recipe: str, status: int) -> None:
    """Not after an interrupted run, nor what linters and Rust's tests find."""
    checkout.fails("test", recipe, status, ["tests/a.py::first"])
    assert checkout.run("test") == (1, [])
    assert checkout.again == []


def test_its_targets_can_be_given(checkout: Checkout) -> None:
    checkout.fails("test", "test-python", 2, [])
    assert checkout.run("test-long") == (0, [])
