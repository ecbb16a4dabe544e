"""`sgl-omni check` of hub ids: the headers of their weights are fetched, and no weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fake_hub import FakeHub, fake_hub

from sglang_omni.models.text.tiny_checkpoint import make


def checked(hub: FakeHub, cache: Path, *ids: str) -> list[tuple[int, dict[str, Any]]]:
    """Exit status and answer of ``sgl-omni check --json`` of each id, in a process with an empty cache."""
    code = (
        "import sys; from sglang_omni.cli.check import main\n"
        "for each in sys.argv[1:]: print('STATUS', main([each, '--json'], prog='check'), flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *ids],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )
    answers, text = [], ""
    for line in done.stdout.splitlines():
        if line.startswith("STATUS "):
            answers.append((int(line.removeprefix("STATUS ")), json.loads(text)))
            text = ""
        else:
            text += line
    return answers


def test_of_an_id_headers_are_enough(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    make(whole, hidden=256, layers=4)
    repos = {"org/whole": whole, "org/gated": whole}
    with fake_hub(repos, frozenset({"org/gated"})) as hub:
        good, gated, unknown = checked(hub, tmp_path / "cache", "org/whole", "org/gated", "org/none")
        weights = whole / "model.safetensors"
        assert 0 < hub.sent["model.safetensors"] <= 100_001 < weights.stat().st_size // 10
    status, told = good
    assert status == 0
    assert told["would_start"] is True
    assert {"name": "model.safetensors", "size": weights.stat().st_size, "cached": False} in told["files"]
    assert told["download_bytes"] >= weights.stat().st_size
    by_name = {finding["name"]: finding["text"] for finding in told["checks"]}
    assert by_name["tensors"].startswith("all 39 that are read")
    for (status, told), why in (
        (gated, "org/gated is gated: accept its terms on"),
        (unknown, "org/none is not on http"),
    ):
        assert status == 1
        (failed,) = [finding["text"] for finding in told["checks"] if finding["status"] == "fail"]
        assert why in failed
        assert "hf auth login" in failed
