"""The tests that need a GPU, with pytest."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from bench import Bench, Skip

_TESTS = Path(__file__).resolve().parents[2] / "tests"


def run(bench: Bench) -> None:
    missing = [
        name for name in ("pytest", "pytest_asyncio", "hypothesis") if not importlib.util.find_spec(name)
    ]
    if missing:
        raise Skip(f"needs {', '.join(missing)}")
    folders = [_TESTS / "device", *([_TESTS / "gpu"] if bench.on_gpu else [])]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    print(done.stdout[-4000:], file=sys.stderr)
    [*_, last] = done.stdout.strip().splitlines() or ["nothing was printed"]
    bench.check(
        "tests", "tests/device" + (" and tests/gpu" if bench.on_gpu else ""), done.returncode == 0, last
    )
    if passed := re.search(r"(\d+) passed", last):
        bench.row("tests", "passed", float(passed[1]), "tests")
