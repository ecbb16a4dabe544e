"""`bench serve --scenarios` against voice servers whose manners the tests script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_voice import RATE, ScriptedVoice, serving
from waiting import PATIENCE

from sglang_omni.bench.clips import wav
from sglang_omni.bench.command import main

ALL = "plain,interrupt,backchannel,second-voice,noise"


def tone(peak: int, seconds: float) -> bytes:
    return wav((peak * np.sin(np.arange(round(seconds * RATE)) * 0.1)).astype(np.int16))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clips = tmp_path / "clips"
    clips.mkdir()
    (clips / "a.wav").write_bytes(tone(10_000, 0.5))
    (clips / "a.txt").write_text("What colour is the sea, and why?\n")
    (clips / "backchannel.wav").write_bytes(tone(2000, 0.2))


def judged(script: ScriptedVoice, scenarios: str, *flags: str, expected: int = 0) -> dict[str, Any]:
    """What it writes of each scenario, one turn each."""
    sessions = str(len(scenarios.split(",")))
    with serving(script) as url:
        given = ["--url", url, "--model", "m", "--traffic", "realtime", "--dataset-path", "clips"]
        given += ["--scenarios", scenarios, "--num-prompts", sessions, "--turns", "1", "--warmup", "0"]
        given += ["--timeout", str(PATIENCE), "--snr", "20", "--output-json", "run.json"]
        assert main(["serve", *given, *flags]) == expected
    reported: dict[str, Any] = json.loads(Path("run.json").read_text())
    return reported


def test_a_server_with_good_manners(capsys: pytest.CaptureFixture[str]) -> None:
    script = ScriptedVoice()
    of = judged(script, ALL)["judged"]
    assert {name: (row["turns"], row["failed"]) for name, row in of.items()} == {
        "plain": (1, 0),
        "interrupt": (2, 0),
        "backchannel": (1, 0),
        "second-voice": (1, 0),
        "noise": (1, 0),
    }
    # Its turns end after 0.2 s of silence, but where the client commits them.
    assert of["plain"]["first_sound_ms"][0] < 150
    for name in ("interrupt", "backchannel", "second-voice", "noise"):
        assert 200 < of[name]["first_sound_ms"][0] < 600
        assert of[name]["gaps_s"] == 0
    # The first frame of an interruption is sent at its end, and noticed at once.
    assert 20 <= of["interrupt"]["silence_ms"][0] < 300
    assert of["interrupt"]["talk_over_s"] == pytest.approx(of["interrupt"]["silence_ms"][0] / 1000, abs=0.03)
    assert [of[name]["silence_ms"] for name in of if name != "interrupt"] == [None] * 4
    # It understands five of seven words.
    assert (of["noise"]["words"], of["noise"]["words_lost"]) == (7, 2)
    assert (of["interrupt"]["words"], of["interrupt"]["words_lost"]) == (14, 4)
    assert {name: (row["stopped"], row["undisturbed"]) for name, row in of.items()} == {
        "plain": (None, None),
        "interrupt": (None, None),
        "backchannel": (0, 1),
        "second-voice": (0, 1),
        "noise": (0, 1),
    }
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("backchannel")]
    assert row.split()[1:3] == ["1", "0"]
    assert row.split()[-1] == "0/1"
    # What was heard of the answer is what the conversation keeps.
    [cut] = [event for event in script.took if event["type"] == "conversation.item.truncate"]
    assert 500 <= cut["audio_end_ms"] <= 2500


def test_a_server_that_everything_stops() -> None:
    of = judged(ScriptedVoice(threshold=400), "backchannel,second-voice")["judged"]
    assert [(row["stopped"], row["undisturbed"]) for row in of.values()] == [(1, 1), (1, 1)]
    assert all(row["failed"] == 0 for row in of.values())


def test_gaps_and_silence_before_the_answer() -> None:
    """Silence that is sent as sound is no first sound."""
    of = judged(ScriptedVoice(answer=(0.0, 0.5, 0.5)), "plain")
    assert "judged" not in of
    of = judged(ScriptedVoice(answer=(0.0, 0.5, 0.5)), "plain,noise")["judged"]
    assert 500 < of["plain"]["first_sound_ms"][0] < 700
    assert 700 < of["noise"]["first_sound_ms"][0] < 1100


def test_what_a_server_cannot_do_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    reported = judged(ScriptedVoice(transcript=None, finds_turns=False), "plain,interrupt")
    assert reported["judged"]["plain"]["words"] is None
    assert (reported["judged"]["interrupt"]["turns"], reported["failed"]) == (0, 0)
    lines = capsys.readouterr().out.splitlines()
    [row] = [line for line in lines if line.startswith("interrupt ")]
    assert row.split()[1:] == ["-"] * 8
    assert "interrupt: the server finds no turns: not here" in lines
    assert "words lost: the server writes down no turns: not here" in lines


def test_nothing_to_judge(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ScriptedVoice(finds_turns=False)) as url:
        flags = ["--model", "m", "--traffic", "realtime", "--dataset-path", "clips", "--scenarios", "noise"]
        assert main(["serve", "--url", url, *flags]) == 1
    assert "no turns: the server finds none itself: not here" in capsys.readouterr().err


def test_a_turn_without_an_answer_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_omni.bench.judge.talk._NOTICED_S", 0.5)
    reported = judged(ScriptedVoice(answers=False), "noise", "--turns", "2", expected=1)
    assert reported["errors"] == {"no answer": 2}
    assert (reported["judged"]["noise"]["failed"], reported["judged"]["noise"]["words_lost"]) == (2, 4)


def test_a_turn_to_warm_up_that_fails_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sglang_omni.bench.judge.talk._NOTICED_S", 0.5)
    with serving(ScriptedVoice(answers=False)) as url:
        flags = ["--model", "m", "--traffic", "realtime", "--dataset-path", "clips", "--scenarios", "noise"]
        assert main(["serve", "--url", url, *flags]) == 1
    assert "no answer: the server began none within 0.5 s of a turn's end" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--scenarios", "noise"), "give --traffic realtime"),
        (("--traffic", "realtime", "--scenarios", "noisy"), "'noisy' is none of"),
        (("--traffic", "realtime", "--scenarios", "noise,noise"), "names a scenario twice"),
        (("--traffic", "realtime", "--snr", "loud"), "no number of decibels"),
    ],
)
def test_wrong_flags(flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", *flags])
    assert message in capsys.readouterr().err
