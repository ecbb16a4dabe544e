"""`sgl-omni bench serve` against the API, whose answers and faults the tests script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_pipeline import ScriptedPipeline
from waiting import PATIENCE

from sglang_omni.bench.command import main


def bench(url: str, *flags: str, expected: int = 0, warmup: int = 1) -> dict[str, Any]:
    """Its JSON; see ``capsys`` for what it prints."""
    file = Path("run.json")
    given = ("--url", url, "--output-json", str(file), "--timeout", str(PATIENCE), "--warmup", str(warmup))
    assert main(["serve", *given, *flags]) == expected
    reported: dict[str, Any] = json.loads(file.read_text())
    return reported


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("traffic", ["chat", "completions"])
def test_text(base_url: str, traffic: str, capsys: pytest.CaptureFixture[str]) -> None:
    reported = bench(
        base_url, "--traffic", traffic, "--num-prompts", "6", "--concurrency", "2", "--plot", "a.svg"
    )
    assert (reported["completed"], reported["failed"], reported["model"]) == (6, 0, "scripted")
    # As the server counts them: 7 of a prompt, 4 of them cached, and 3 of an answer.
    assert [reported[f"total_{kind}_tokens"] for kind in ("input", "cached", "output")] == [42, 24, 18]
    assert 0 < reported["p50_ttft_ms"] <= reported["p50_e2el_ms"]
    assert {"mean_itl_ms", "p99_tpot_ms"} <= reported.keys()
    assert "first_sound_ms" not in reported
    said = capsys.readouterr().out
    assert said.startswith(f"scripted at {base_url}: {traffic}, 2 at once\n")
    assert "6 answered, 0 failed" in said
    assert Path("a.svg").read_text().count("<circle") == 6


def test_what_is_asked(base_url: str, pipeline: ScriptedPipeline) -> None:
    flags = (
        "--num-prompts",
        "3",
        "--output-len",
        "9",
        "--extra-body",
        '{"temperature": 0.5}',
        "--ignore-eos",
    )
    bench(base_url, *flags, "--dataset-name", "random", "--random-input-len", "12")
    assert len(pipeline.requests) == 4  # one warms up
    for _, request in pipeline.requests:
        assert len(request.inputs["messages"][0]["content"].split()) == 12
    assert pipeline.last.params["temperature"] == 0.5
    assert pipeline.last.params["ignore_eos"] is True
    assert 9 in pipeline.last.params.values()


@pytest.mark.parametrize("traffic", ["speech", "spoken-chat"])
def test_sound(base_url: str, pipeline: ScriptedPipeline, traffic: str) -> None:
    pipeline.pause = 0.05
    reported = bench(base_url, "--traffic", traffic, "--num-prompts", "3", "--voice", "default")
    assert reported["completed"] == 3
    assert reported["sound_seconds"] == pytest.approx(3 * 480 / 24_000)
    assert reported["p50_first_sound_ms"] >= 50
    assert "p50_underrun_ms" in reported
    assert reported["p50_rtf"] > 1


def test_transcripts_of_the_servers_own_voice(base_url: str, pipeline: ScriptedPipeline) -> None:
    reported = bench(base_url, "--traffic", "transcription", "--num-prompts", "2")
    assert reported["completed"] == 2
    assert reported["sound_seconds"] == pytest.approx(2 * 480 / 24_000, rel=0.01)
    assert reported["mean_rtf"] > 0
    assert [request.metadata["task"] for _, request in pipeline.requests].count("speech") == 8


def test_turns_of_sessions(base_url: str) -> None:
    reported = bench(
        base_url, "--traffic", "realtime", "--num-prompts", "2", "--turns", "2", "--dataset-path", clip()
    )
    assert (reported["completed"], reported["failed"]) == (4, 0)
    assert reported["sound_seconds"] == pytest.approx(4 * 480 / 24_000)
    assert reported["p50_first_sound_ms"] > 0


def clip() -> str:
    """A file with a fifth of a second of sound."""
    import numpy as np

    from sglang_omni.bench.clips import wav

    Path("clip.wav").write_bytes(wav(np.ones(4800, np.int16)))
    return "clip.wav"


def test_failures_are_reported_by_kind(
    base_url: str, pipeline: ScriptedPipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.error, pipeline.error_after = RuntimeError("the stage broke"), 1
    reported = bench(base_url, "--num-prompts", "3", expected=1, warmup=0)
    assert (reported["completed"], reported["failed"], reported["errors"]) == (0, 3, {"error event": 3})
    assert "3 x error event: the stage broke" in capsys.readouterr().out


def test_a_first_request_that_fails_ends_it(base_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--url", base_url, "--extra-body", '{"temprature": 1}']) == 1
    assert "HTTP 400: unknown field 'temprature'; did you mean 'temperature'?" in capsys.readouterr().err


def test_goals(base_url: str) -> None:
    reported = bench(base_url, "--num-prompts", "4", "--goodput", "ttft:1e9", "tpot:1e9", warmup=0)
    assert reported["request_goodput"] == pytest.approx(reported["request_throughput"])
    assert bench(base_url, "--num-prompts", "4", "--goodput", "first_sound:1e9")["request_goodput"] == 0


def test_a_rate_is_kept_for_a_time(base_url: str) -> None:
    reported = bench(base_url, "--request-rate", "200", "--duration", "0.3")
    assert reported["completed"] > 10
    assert reported["request_rate"] == 200.0
    assert all(0 <= request["began"] < 0.3 for request in reported["requests"])
