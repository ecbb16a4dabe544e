"""The judge of voice servers before the demo, through the router."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from served_process import ServedProcess

from sglang_omni.bench.command import main


@pytest.mark.long
def test_the_demo_is_judged(fleet: ServedProcess, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    flags = ["--traffic", "realtime", "--scenarios", "plain,interrupt,backchannel", "--num-prompts", "3"]
    # The third turn is for an answer that ends before its listener would say a word, which is not counted.
    flags += ["--turns", "3", "--concurrency", "1", "--warmup", "0", "--output-len", "30"]
    flags += ["--output-json", str(file)]
    assert main(["serve", "--url", fleet.base_url, *flags]) == 0
    of = json.loads(file.read_text())["judged"]
    assert [row["failed"] for row in of.values()] == [0, 0, 0]
    # server_vad waits half a second for the end of a turn.
    assert of["backchannel"]["first_sound_ms"][0] > 500
    assert 0 < of["interrupt"]["silence_ms"][1] < 1500
    assert of["interrupt"]["talk_over_s"] < 1.5
    for row in of.values():
        assert row["words_lost"] <= row["words"] / 4
    assert of["backchannel"]["undisturbed"] >= 2
