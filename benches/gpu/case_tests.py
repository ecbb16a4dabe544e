"""The tests that need a GPU, with pytest."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench import Bench, Skip

_TESTS = Path(__file__).resolve().parents[2] / "tests"
# Of the time that is left: other cases come after these tests.
_SHARE = 0.4


def run(bench: Bench) -> None:
    if not bench.on_gpu:
        raise Skip("needs a GPU")
    pytest("tests", bench, "gpu", _SHARE * (bench.deadline - time.monotonic()), {})


def pytest(case: str, bench: Bench, folder: str, seconds: float, variables: Mapping[str, str]) -> None:
    """Runs all tests of a folder of ``tests``. What they print is in ``tests-FOLDER.txt``.

    Args:
        seconds: They are killed after that.
        variables: Of their environment, beside this process's.

    Raises:
        Skip: pytest, or what it needs, is not installed.
    """
    needs = ("pytest", "pytest_asyncio", "pytest_timeout", "xdist", "hypothesis")
    if missing := [name for name in needs if importlib.util.find_spec(name) is None]:
        raise Skip(f"needs {', '.join(missing)}")
    file = bench.out / f"tests-{folder}.txt"
    options = ("-v", "-rfEs", "--disable-warnings", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *options, str(_TESTS / folder)]
    with file.open("wb") as printed:
        tests = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=printed, stderr=subprocess.STDOUT
        )
        try:
            status: int | None = tests.wait(seconds)
        except subprocess.TimeoutExpired:
            tests.kill()
            tests.wait()
            status = None
    text = file.read_text(errors="replace")
    print(text[-4000:], file=sys.stderr)
    [*_, last] = text.strip().splitlines() or ["nothing was printed"]
    detail = last if status is not None else f"not done after {seconds:.0f} s, in {last}"
    bench.check(case, f"tests/{folder}", status == 0, detail)
    passed = re.search(r"(\d+) passed", last)
    bench.row(case, "passed", float(passed[1] if passed else text.count(" PASSED ")), "tests")
