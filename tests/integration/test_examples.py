"""The examples run as a user runs them, and print what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_pipeline_of_ones_own_in_three_processes() -> None:
    assert run("three_stages.py", "a rose is a rose is", "a rose") == "a 3, rose 3, is 2\n"


def test_the_legacy_form_in_one_process() -> None:
    # 1 - 5 is below zero: its request ends after the second stage.
    assert run("legacy_form.py").splitlines() == [
        "1 -> {'value': -16}",
        "9 -> {'value': 8.0, 'text': 'the half is 8'}",
    ]
