"""Requests made from the server's own description of its API, right ones and wrong ones: no answer is a
failure of the server, and each has a status, a type and a form that the description allows.

``make fuzz-http`` sends more of them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from clients import clients_python
from served_process import ServedProcess
from waiting import PATIENCE

SECONDS = os.environ.get("FUZZ_SECONDS", "20")
SEED = os.environ.get("FUZZ_SEED", "1")
SETTINGS = Path(__file__).with_name("schemathesis.toml")


@pytest.mark.long
@pytest.mark.timeout(int(SECONDS) + 10 * PATIENCE)
def test_no_generated_request_is_answered_wrongly(fleet: ServedProcess, tmp_path: Path) -> None:
    program = clients_python("fuzz-http").with_name("schemathesis")
    done = subprocess.run(
        [
            *(program, "--config-file", SETTINGS, "--no-color"),
            *("run", f"{fleet.base_url}/openapi.json", "--seed", SEED, "--max-time", SECONDS),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0
