"""What a demo shows of its server's log once the server is up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sglang_omni.demo import servers
from sglang_omni.demo.servers import warnings_of

UP = "2026-11-28 16:35:22,515 INFO [server] sglang_omni.serve.launch.replica: speech-chat is served\n"
LOG = [
    "2026-11-28 16:40:00,001 INFO [thinker] a: loaded",
    "  of two lines",
    "2026-11-28 16:40:01,001 ERROR [thinker] a: request 1 failed",
    "Traceback (most recent call last):",
    "ModuleNotFoundError: No module named 'xgrammar'",
    "2026-11-28 16:40:02,001 INFO [server] b: served",
    "2026-11-28T16:40:03.001Z  WARN worker 1 is down",
    "2026-11-28 16:40:04,001 WARNING [server] b: replica 1 was killed",
]


def test_warnings_and_errors_are_shown_with_their_tracebacks() -> None:
    assert list(warnings_of(LOG)) == [*LOG[2:5], *LOG[6:]]


def test_they_are_shown_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(LOG[2] + "\n" + UP)
    shown = ""
    with servers._telling_warnings(log, 2), log.open("a") as file:
        file.write(LOG[5] + "\n" + LOG[7][:30])
        file.flush()
        file.write(LOG[7][30:] + "\n")
        file.flush()
        deadline = time.monotonic() + 60
        while not shown and time.monotonic() < deadline:
            time.sleep(0.01)
            shown = capsys.readouterr().out
    assert shown == f"  | {LOG[7]}\n"
