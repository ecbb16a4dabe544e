"""``make test-gpu`` and the kit's suite: what is kept of tests, and what is said of what cannot run."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A Bench on a GPU, whose results are in ``tmp_path / "out"``."""
    monkeypatch.syspath_prepend(ROOT / "benches/gpu")
    (tmp_path / "out").mkdir()
    return importlib.import_module("bench").Bench("cuda:0", time.monotonic() + 1000, tmp_path / "out")


@pytest.fixture
def tests(suite: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``case_tests``, whose tests are those in ``tmp_path``."""
    module = importlib.import_module("case_tests")
    monkeypatch.setattr(module, "_TESTS", tmp_path)
    (tmp_path / "gpu").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return module


def test_a_test_that_fails_keeps_none_from_running(suite: Any, tests: Any, tmp_path: Path) -> None:
    (tmp_path / "gpu/test_a.py").write_text("def test_first():\n    assert 3 == 4\n")
    (tmp_path / "gpu/test_b.py").write_text("def test_second():\n    pass\n")
    tests.run(suite)
    ((check,), (row,)) = suite.checks, suite.rows
    assert not check.passed
    assert "1 failed, 1 passed" in check.detail
    assert row.value == 1
    assert "assert 3 == 4" in (tmp_path / "out/tests-gpu.txt").read_text()


def test_at_a_timeout_what_was_printed_is_kept(
    suite: Any, tests: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "python"
    hangs.write_text("#!/bin/sh\necho 'test_a.py::test_first PASSED [ 50%]'\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hangs))
    tests.pytest("tests", suite, "gpu", 5.0, {})
    ((check,), (row,)) = suite.checks, suite.rows
    assert not check.passed
    assert check.detail == "not done after 5 s, in test_a.py::test_first PASSED [ 50%]"
    assert row.value == 1


def test_no_other_engine_takes_the_place_of_sglangs(
    suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    skip = importlib.import_module("bench").Skip
    with pytest.raises(skip, match=r"^ImportError: .*has no bin/nvcc.* \(`make build-gpu` makes") as skipped:
        importlib.import_module("case_serving").run(suite)
    assert "\n" not in str(skipped.value)
