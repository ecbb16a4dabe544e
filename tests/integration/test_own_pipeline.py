"""A person's own pipeline, served by the installed command out of the folder it lies in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx

CONFIG = """
model_path: none
name: mine
stages:
  - {name: count, process: a, factory: my_pipeline.count, terminal: true}
"""
MODULE = """
def count():
    def run(payload):
        length = len(payload.request.inputs["prompt"])
        return {"modality": "text", "text": str(length), "finish_reason": "stop"}
    return run
"""


def test_it_is_served(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(CONFIG)
    (tmp_path / "my_pipeline.py").write_text(MODULE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    log = tmp_path / "log"
    command = [str(Path(sys.executable).with_name("sgl-omni")), "serve", "--config", "pipeline.yaml"]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "--port", "0", "--parent-pid", str(os.getpid())],
            cwd=tmp_path,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"served on (\S+)", log.read_text())):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        answer = httpx.post(f"{found[1]}/v1/completions", json={"prompt": "four"}, timeout=60)
        assert answer.json()["choices"][0]["text"] == "4", answer.text
    finally:
        server.terminate()
        server.wait(60)
