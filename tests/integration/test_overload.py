"""A short run of the soak: many times what a small pipeline can do, with a queue that is full all along."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

SOAK = Path(__file__).resolve().parent.parent / "soak/overload.py"
HERE = Path(__file__).parent
# One request in 50 ms, so twenty a second, whatever runs at once.
CONFIG = """
model_path: none
name: slow
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: upper, process: a, factory: served_stages.upper_by_three, next: answer}}
  - {{name: answer, process: b, factory: served_stages.slow_answer, terminal: true}}
"""


async def soak(folder: Path, *options: str) -> tuple[int, str]:
    config = folder / "pipeline.yaml"
    config.write_text(CONFIG.format(folder=folder))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, SOAK, "--seconds", "4", "--capacity-seconds", "2", "--least-goodput", "0.5"),
        *("--config", str(config), *options),
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    text, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, text.decode()


async def test_what_is_too_much_is_refused_and_the_rest_is_done(tmp_path: Path) -> None:
    status, text = await soak(tmp_path, "--max-concurrent-requests", "4", "--queue-size", "8")
    assert status == 0, text
    assert "slow holds 4 requests at once (upper 3, answer 1), 8 more wait up to 60 s" in text
    refused = re.search(r'"429": (\d+)', text)
    assert refused is not None, text
    assert int(refused[1]) > 100, text
    # Twelve take 0.6 s; an unbounded queue would have had the last wait for half a minute.
    most = re.search(r"^all .* ([\d.]+)s$", text, re.MULTILINE)
    assert most is not None, text
    assert float(most[1]) < 12, text
