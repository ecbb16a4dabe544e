"""A person's own pipeline, served by the installed command out of the folder it lies in."""

from __future__ import annotations

from pathlib import Path

import httpx
from own_pipelines import served

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
    with served(tmp_path, "--config", "pipeline.yaml") as url:
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "four"}, timeout=60)
        assert answer.json()["choices"][0]["text"] == "4", answer.text
