"""The environment of foreign realtime clients, which is not the one that tests run in."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = ROOT / "build" / "clients"


def clients_python() -> Path:
    """The environment's interpreter."""
    python = CLIENTS / "bin" / "python"
    assert python.exists(), "pipecat is not installed: run `make clients`, or `make test-long`, which does"
    return python


def pipecat_file(pattern: str) -> Path:
    """The one file of the installed pipecat with this path, which may have wildcards."""
    clients_python()
    [found] = (CLIENTS / "lib").glob(f"python3*/site-packages/pipecat/{pattern}")
    return found
