"""A reader's way through the code does not become longer: the files that three walks enter, counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHES = Path(__file__).parents[2] / "benches"


def test_no_walk_enters_more_files_than_agreed() -> None:
    done = subprocess.run(
        [sys.executable, "walk.py", "--files"], cwd=BENCHES, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("| a ") == 3
