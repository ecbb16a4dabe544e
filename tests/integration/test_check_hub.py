"""Hub ids are checked by the headers of their weights: by `sgl-omni check`, and before a server's start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import faulty_checkpoints as faults
from fake_hub import SHA, FakeHub, fake_hub

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
    status, reported = good
    assert status == 0
    assert reported["would_start"] is True
    assert {"name": "model.safetensors", "size": weights.stat().st_size, "cached": False} in reported["files"]
    assert reported["download_bytes"] >= weights.stat().st_size
    by_name = {finding["name"]: finding["text"] for finding in reported["checks"]}
    assert by_name["tensors"].startswith("all 39 that are read")
    for (status, reported), why in (
        (gated, "org/gated is gated: accept its terms on"),
        (unknown, "org/none is not on http"),
    ):
        assert status == 1
        (failed,) = [finding["text"] for finding in reported["checks"] if finding["status"] == "fail"]
        assert why in failed
        assert "hf auth login" in failed


def started(hub: FakeHub, cache: Path, model_id: str) -> str:
    """What a server says that does not start. Any weights are worth a check before they are fetched."""
    code = (
        "import sys; from sglang_omni import launch_server; from sglang_omni.serve.launch import planning\n"
        "if __name__ == '__main__':\n"
        "    planning._WORTH_BUILDING = 1\n"
        "    sys.exit(launch_server.main([sys.argv[1], '--port', '0']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, model_id],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_what_would_not_start_is_reported_before_its_weights_are_fetched(tmp_path: Path) -> None:
    repos = {}
    for name, fault in (("shape", faults.wrong_shape), ("foreign", faults.foreign_layout)):
        repos[f"org/{name}"] = faults.whole(tmp_path / name)
        fault(repos[f"org/{name}"])
    torn = repos["org/torn"] = faults.whole(tmp_path / "torn")
    (torn / "model-1.safetensors").write_bytes(b"no header")
    with fake_hub(repos) as hub:
        shape, foreign = (started(hub, tmp_path / "cache", f"org/{name}") for name in ("shape", "foreign"))
        fetched = [path for path in hub.requests if path.startswith("GET") and "model-" in path]
        corrupted = started(hub, tmp_path / "cache", "org/torn")
    assert "checkpoint org/shape: 'model.norm.weight' has shape (63,), config.json asks for (64,)" in shape
    assert "checkpoint org/foreign lacks 18 tensors: model.layers.0.input_layernorm.weight, " in foreign
    assert fetched == []
    # Headers that cannot be had keep nothing from being fetched: a mirror may not give parts of files.
    assert "its weights are not checked before they are fetched" in corrupted
    assert "model-1.safetensors is corrupted or incomplete" in corrupted
    assert hub.requests[f"GET /org/torn/resolve/{SHA}/model-1.safetensors"] == 1
