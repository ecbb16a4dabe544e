"""``sgl-omni chat``, ``say``, ``transcribe``, ``voices`` and ``models`` before the fleet, as users type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from served_process import ServedProcess
from terminal import CTRL_C, CTRL_D, Terminal

from sglang_omni.client import Sound

QUESTION = "What is the capital of France?"
CARD = str(Path(__file__).parents[1] / "sound_card")
# The likeliest words, and few of them: the model is small.
STEADY = ("--temperature", "0", "--max-tokens", "24")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(fleet: ServedProcess, tmp_path: Path) -> Run:
    """``run("say", ...)``: the command before the fleet, in a folder of its own."""

    def command(name: str, *arguments: str, stdin: str | bytes = "", **env: str):
        as_bytes = isinstance(stdin, bytes)
        done = subprocess.run(
            [sys.executable, "-m", "sglang_omni.cli", name, "--url", fleet.base_url, *arguments],
            input=stdin if as_bytes else stdin.encode(),
            capture_output=True,
            cwd=tmp_path,
            env=os.environ | env,
            timeout=200,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        out = done.stdout if "-o-" in arguments else done.stdout.decode()
        return subprocess.CompletedProcess(done.args, done.returncode, out, done.stderr.decode())

    return command


@pytest.fixture
def question(run: Run, tmp_path: Path) -> Path:
    """The question as a sound file."""
    assert run("say", QUESTION, "-o", "question.wav").returncode == 0
    return tmp_path / "question.wav"


def test_said_and_written_down(run: Run, question: Path, tmp_path: Path) -> None:
    with wave.open(str(question)) as file:
        seconds = file.getnframes() / file.getframerate()
    assert 1 < seconds < 4
    # A length that is told, not that of a stream.
    assert question.stat().st_size == 44 + file.getnframes() * 2

    (tmp_path / "copy.wav").write_bytes(question.read_bytes())
    both = run("transcribe", "*.wav")
    assert both.stdout == f"==> copy.wav <==\n{QUESTION}\n==> question.wav <==\n{QUESTION}\n"
    assert run("transcribe", "-", "--stream", stdin=question.read_bytes()).stdout == f"{QUESTION}\n"
    srt = run("transcribe", "question.wav", "--format", "srt").stdout.splitlines()
    assert srt[0] == "1"
    assert srt[1].startswith("00:00:00,000 --> 00:00:0")
    assert run("transcribe", "question.wav", "--format", "vtt").stdout.startswith("WEBVTT\n\n00:")
    reported = json.loads(run("transcribe", "question.wav", "--format", "json").stdout)
    assert (reported["file"], reported["text"], reported["language"]) == ("question.wav", QUESTION, "en")
    assert reported["segments"][0]["text"].strip() == QUESTION


def test_one_file_that_is_none_spoils_no_other(run: Run, question: Path) -> None:
    done = run("transcribe", "nothing.wav", "question.wav")
    assert done.returncode == 1
    assert done.stdout == f"==> question.wav <==\n{QUESTION}\n"
    assert done.stderr == "sgl-omni transcribe: nothing.wav: no such file\n"


def test_speech_from_a_pipe_to_a_pipe(run: Run) -> None:
    done = run("say", "-o-", stdin=QUESTION)
    assert done.returncode == 0, done.stderr
    assert len(Sound.decode(done.stdout).samples) > 20_000
    assert done.stderr.startswith("-: ")


def test_speech_is_played(run: Run, tmp_path: Path) -> None:
    played = tmp_path / "played.pcm"
    card = {"PYTHONPATH": CARD, "SOUND_CARD_PLAYED": str(played)}
    assert run("say", QUESTION, "--voice", "ash", "-o", "speech.wav", "--play", **card).returncode == 0
    written = Sound.load(tmp_path / "speech.wav")
    assert written.encode("pcm") == played.read_bytes()


def test_one_answer(run: Run, question: Path, tmp_path: Path) -> None:
    done = run("chat", QUESTION, *STEADY, "--stats", "--save", "answer.mp3")
    assert "Paris" in done.stdout
    assert "first word after" in done.stderr
    assert "s of sound, the first after" in done.stderr
    assert Sound.load(tmp_path / "answer.mp3").seconds > 1
    assert "Paris" in run("chat", *STEADY, stdin=QUESTION).stdout
    heard = run("chat", "", "--audio", "question.wav", *STEADY)
    assert "Paris" in heard.stdout
    assert f"(heard: {QUESTION})" in heard.stderr


def test_what_is_served(run: Run) -> None:
    rows = run("models").stdout.splitlines()
    assert rows[0].split() == ["MODEL", "TASKS", "TAKES", "GIVES"]
    assert rows[1].startswith("speech-chat  chat, completion, speech, transcription")
    assert "default" in run("voices").stdout.split()


def test_a_conversation(fleet: ServedProcess, question: Path, tmp_path: Path) -> None:
    env = {"PYTHONPATH": CARD, "SOUND_CARD_PLAYED": str(tmp_path / "played.pcm")}
    Sound(np.concatenate([Sound.load(question).samples, np.zeros(24_000)]), 24_000).save(tmp_path / "mic.wav")
    env["SOUND_CARD_HEARS"] = str(tmp_path / "mic.wav")
    with Terminal("chat", "--url", fleet.base_url, *STEADY, "--speak", env=env) as terminal:
        terminal.until("/help lists commands.*\n")
        terminal.until("> ")
        terminal.type(f"{QUESTION}\r")
        terminal.until(r"capital of France is Paris")
        terminal.until("\n> ")
        assert (tmp_path / "played.pcm").stat().st_size > 48_000
        terminal.type("/helb\r")
        terminal.until(r"no command /helb; did you mean /help\? /help lists them")
        terminal.type("/help\r")
        terminal.until(r"/record +speak the next message")
        terminal.type(f"/audio {question}\r")
        terminal.until("goes with your next message")
        terminal.type("Please answer.\r")
        terminal.until(r"\(heard: What is the capital of France\?\)")
        terminal.until("\n> ")
        terminal.type("/record\r")
        terminal.until(r"\(heard: What is the capital of France\?\)")
        terminal.until("\n> ")
        terminal.type("/voice bob\r")
        terminal.until("no voice 'bob'; there are default, heart")
        terminal.type("/voice ash\r")
        terminal.until("> ")
        for name in ("talk.md", "answer.flac"):
            terminal.type(f"/save {tmp_path / name}\r")
            terminal.until(f"{name} is written")
        terminal.type("/save nowhere/x.md\r")
        terminal.until("cannot be written: No such file or directory")
        terminal.type("/clear\r")
        terminal.until("forgotten")
        terminal.until("> ")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    talk = (tmp_path / "talk.md").read_text()
    assert talk.count("**user**") == talk.count("**assistant**") == 3
    assert QUESTION in talk
    assert Sound.load(tmp_path / "answer.flac").seconds > 0.5


def test_ctrl_c_stops_an_answer_and_not_the_program(fleet: ServedProcess, tmp_path: Path) -> None:
    env = {"PYTHONPATH": CARD, "SOUND_CARD_PLAYED": str(tmp_path / "played.pcm"), "SOUND_CARD_PACE": "real"}
    with Terminal("chat", "--url", fleet.base_url, "--temperature", "0", "--speak", env=env) as terminal:
        terminal.until("> ")
        terminal.type("Count from one to five hundred in words.\r")
        terminal.until(r"in words\.\n\w+")
        terminal.type(CTRL_C)
        terminal.until(r"\(stopped\)")
        terminal.until("> ")
        played = (tmp_path / "played.pcm").stat().st_size if (tmp_path / "played.pcm").exists() else 0
        terminal.interrupt_prompt(r"\(Ctrl-D ends\)")
        terminal.until("> ")
        terminal.type("/quit\r")
        assert terminal.ended() == 0
        assert "Traceback" not in terminal.shown
    # Nothing was played after the answer was stopped.
    assert played == ((tmp_path / "played.pcm").stat().st_size if played else 0)


def test_a_question_that_fails_leaves_the_conversation_as_it_was(fleet: ServedProcess) -> None:
    with Terminal("chat", "--url", fleet.base_url, *STEADY, "--model", "bob") as terminal:
        terminal.until("> ")
        terminal.type("Hi\r")
        terminal.until("sgl-omni chat: model 'bob' is not served here; this server has 'speech-chat'")
        terminal.until("> ")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
