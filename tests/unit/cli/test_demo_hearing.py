"""A demo plays its answer where a person sits, says how to hear it where none does, and what to do next."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

_HEAR = (
    "from pathlib import Path; from sglang_omni.demo.hearing import let_hear; let_hear(Path('an answer.wav'))"
)
_NEXT = "from sglang_omni.demo.hearing import show_next; show_next(serving={})"


class Terminal:
    """Runs Python in a folder whose only program is a player that notes what it played."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.played = folder / "played"

    def player(self, name: str, status: int = 0) -> None:
        file = self.folder / name
        file.write_text(f'#!/bin/sh\necho "$@" >> {self.played}\nexit {status}\n')
        file.chmod(0o755)

    def run(self, code: str, *, terminal: bool, **environment: str) -> str:
        command = [sys.executable, "-c", code]
        environment = {"PATH": str(self.folder), **environment}
        if not terminal:
            return subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True, check=True
            ).stdout
        own, other = pty.openpty()
        try:
            subprocess.run(command, cwd=self.folder, env=environment, stdout=other, check=True)
            os.write(other, b"\0")  # so that there is something to read
            return os.read(own, 65_536).decode().replace("\r\n", "\n").rstrip("\0")
        finally:
            os.close(own)
            os.close(other)


@pytest.fixture
def person(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


def test_it_is_played_to_a_person(person: Terminal) -> None:
    person.player("aplay")
    assert person.run(_HEAR, terminal=True) == ""
    assert person.played.read_text() == "-q an answer.wav\n"


def test_a_player_that_fails_is_named(person: Terminal) -> None:
    person.player("aplay", status=1)
    assert person.run(_HEAR, terminal=True) == "     hear it  aplay -q 'an answer.wav'\n"


@pytest.mark.parametrize(("terminal", "environment"), [(False, {}), (True, {"SSH_CONNECTION": "a 1 b 22"})])
def test_nothing_is_played_to_a_file_or_far_away(
    person: Terminal, terminal: bool, environment: dict[str, str]
) -> None:
    person.player("paplay")
    assert person.run(_HEAR, terminal=terminal, **environment) == "     hear it  paplay 'an answer.wav'\n"
    assert not person.played.exists()


def test_a_machine_without_a_player(person: Terminal) -> None:
    assert "open an answer.wav in any player" in person.run(_HEAR, terminal=True)


def test_what_is_next(person: Terminal) -> None:
    shown = person.run(_NEXT.format(False), terminal=False)
    assert "make serve" in shown
    line = f". {sys.prefix}/bin/activate"
    assert line in shown
    shown = person.run(_NEXT.format(True), terminal=False)
    assert "make serve" not in shown
    assert line in shown
    assert "activate" not in person.run(_NEXT.format(False), terminal=False, VIRTUAL_ENV=sys.prefix)
