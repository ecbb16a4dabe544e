"""The environments of foreign clients, which are not the one that tests run in."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"


def clients_python(environment: str = "clients") -> Path:
    """The interpreter of an environment: "clients", "text-clients" or "fuzz-http"."""
    python = BUILD / environment / "bin" / "python"
    assert python.exists(), f"no {environment} are here: run `make clients`, or `make test-long`, which does"
    return python


def pipecat_file(pattern: str) -> Path:
    """The one file of the installed pipecat with this path, which may have wildcards."""
    clients_python()
    [found] = (BUILD / "clients" / "lib").glob(f"python3*/site-packages/pipecat/{pattern}")
    return found
