"""Serves the pipeline for the tests."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Where the pipeline is served, with its own processes, as `sgl-omni serve` does it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "sglang_omni.cli", "serve", "--config", "pipeline.yaml", "--port", "0"],
        cwd=Path(__file__).parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    said = []
    try:
        for line in server.stderr:
            said.append(line)
            if " is served on " in line:
                yield line.split()[-1]
                break
        else:
            pytest.fail("".join(said))
    finally:
        server.terminate()
        server.communicate()
