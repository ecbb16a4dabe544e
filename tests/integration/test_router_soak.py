"""A short run of the soak: mixed traffic while replicas are killed, hung and revived."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SOAK = Path(__file__).resolve().parent.parent / "soak/router_soak.py"


def test_nothing_is_lost_and_nothing_leaks() -> None:
    ran = subprocess.run(
        [sys.executable, SOAK, "--minutes", "0.2"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
