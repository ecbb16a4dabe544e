"""A demo's last lines: the answer is played, and what to do next."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from sglang_omni.demo.report import show

# Players of macOS, of PipeWire, PulseAudio and ALSA, and of ffmpeg: each plays a WAV file and ends.
_PLAYERS = (
    ("afplay",),
    ("pw-play",),
    ("paplay",),
    ("aplay", "-q"),
    ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error"),
)
_SECONDS = 60.0


def let_hear(file: Path) -> None:
    """Plays a WAV file at this machine's terminal, if a player works; else says how to hear it."""
    player = next((player for player in _PLAYERS if shutil.which(player[0])), None)
    if player is None:
        show("hear it", f"open {file} in any player; this machine has none that the demo knows")
        return
    command = [*player, str(file)]
    if not _plays(command):
        show("hear it", shlex.join(command))


def _plays(command: list[str]) -> bool:
    at_the_machine = sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ
    if not at_the_machine:
        return False
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def show_next(*, serving: bool) -> None:
    """Says how to go on: a page to talk to, and how to enter the environment that runs this."""
    print(flush=True)
    if not serving:
        show(
            "next",
            "make serve                    keeps it running: open http://127.0.0.1:8000/ and talk to it",
        )
    if activate := _activation():
        show("next" if serving else "", f"{activate:<28}  enters the environment; then: sgl-omni --help")


def _activation() -> str:
    """The line that enters this virtual environment; nothing if it is entered or is none."""
    if sys.prefix == sys.base_prefix or os.environ.get("VIRTUAL_ENV") == sys.prefix:
        return ""
    script = Path(sys.prefix, "bin", "activate")
    if script.is_relative_to(Path.cwd()):
        script = script.relative_to(Path.cwd())
    return f". {shlex.quote(str(script))}"
