"""A person's own pipeline, served by the installed command out of the folder it lies in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
from program_lines import Lines

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
    command = [str(Path(sys.executable).with_name("sgl-omni")), "serve", "--config", "pipeline.yaml"]
    server = Lines(
        subprocess.Popen(
            [*command, "--port", "0", "--parent-pid", str(os.getpid())],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    )
    try:
        url = server.says("served on ").split()[-1]
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "four"}, timeout=60)
        assert answer.json()["choices"][0]["text"] == "4", answer.text
    finally:
        server.process.terminate()
        server.process.wait(60)
