"""`make demo` as a user runs it: its output, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import wave
from pathlib import Path

import psutil
import pytest
from processes import hear_hangups
from waiting import PATIENCE, wait_until

QUESTION = "What is the capital of France?"


@pytest.mark.long
def test_demo_asks_answers_and_leaves_nothing(short_path: Path) -> None:
    run_dir, temp, out = (short_path / name for name in ("run", "temp", "out"))
    for private in (run_dir, temp):
        private.mkdir(mode=0o700)
    mark = f"demo-test-{os.getpid()}"
    done = subprocess.run(
        [sys.executable, "-m", "sglang_omni.demo", "--say", QUESTION, "--out", out],
        env=os.environ | {"XDG_RUNTIME_DIR": str(run_dir), "TMPDIR": str(temp), "DEMO_TEST_MARK": mark},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    shown = dict(re.findall(r"^ *(heard back|heard|answer|served by|hear it|next)  (.+)$", done.stdout, re.M))
    assert shown["heard"] == QUESTION
    assert "Paris" in shown["answer"]
    assert "Paris" in shown["heard back"]
    assert shown["served by"] in ("replica 0", "replica 1")
    assert str(out / "answer.wav") in shown["hear it"]
    assert "make serve" in shown["next"]
    for stage in ("preprocess", "transcribe", "thinker", "decode", "speak"):
        times = r"\d+\.\d\d s of work, +\d+\.\d\d s of waiting"
        assert re.search(rf"^ +{stage} +{times}$", done.stdout, re.M), done.stdout
    for name in ("question.wav", "answer.wav"):
        with wave.open(str(out / name)) as file:
            assert file.getnframes() > 12_000

    # A process that was killed may still be giving its memory back.
    wait_until(lambda: not _marked(mark), f"left: {_marked(mark)}")
    assert [path for private in (run_dir, temp) for path in private.rglob("*")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_reported_to_end_leaves_nothing(number: signal.Signals, short_path: Path) -> None:
    """Started with SIGINT ignored, as a shell starts `make serve &`; told when its server comes up."""

    def as_a_shell() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        hear_hangups()

    run_dir, temp = (short_path / name for name in ("run", "temp"))
    for private in (run_dir, temp):
        private.mkdir(mode=0o700)
    mark = f"demo-end-{number.name}-{os.getpid()}"
    demo = subprocess.Popen(
        [sys.executable, "-m", "sglang_omni.demo", "--keep-serving", "--out", short_path / "out"],
        env=os.environ | {"XDG_RUNTIME_DIR": str(run_dir), "TMPDIR": str(temp), "DEMO_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=as_a_shell,
    )
    try:
        wait_until(lambda: any(temp.glob("sglang-omni-demo-*/log")), "no server was started")
        demo.send_signal(number)
        output, _ = demo.communicate(timeout=PATIENCE)
    finally:
        demo.kill()
    assert demo.returncode == 0, output.decode()
    assert b"Traceback" not in output
    wait_until(lambda: not _marked(mark), f"left: {_marked(mark)}")
    assert [path for private in (run_dir, temp) for path in private.rglob("*")] == []


def _marked(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if mark in _environment(process).values()]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}
