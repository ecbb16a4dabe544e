"""A program at a terminal of its own, which a test types at and reads."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Self

from waiting import PATIENCE

_BETWEEN_PRESSES = 2.0
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """``sgl-omni ARGUMENTS`` at a pseudo-terminal.

    Attributes:
        shown: All that it has shown so far.
    """

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.shown = ""
        self._seen = 0
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sglang_omni.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "dumb"} | dict(env or {}),
            # Ctrl-C is for the program whose terminal it is.
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def until(self, pattern: str) -> re.Match[str]:
        """Waits for text that matches, after what was waited for before."""
        if (found := self._awaited(pattern, PATIENCE)) is None:
            raise self._is_not_shown(pattern)
        return found

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt_prompt(self, pattern: str) -> None:
        """Presses Ctrl-C at a prompt until text that matches is shown.

        Once may not be enough: a signal that comes between the prompt and the wait for keys is noted by
        CPython's readline, and looked at when the next key is pressed.
        """
        for _ in range(int(PATIENCE / _BETWEEN_PRESSES)):
            self.type(CTRL_C)
            if self._awaited(pattern, _BETWEEN_PRESSES):
                return
        raise self._is_not_shown(pattern)

    def ended(self) -> int:
        """Waits for the program's end; its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self._read() and time.monotonic() < deadline:
            pass
        return self.process.wait(PATIENCE)

    def _awaited(self, pattern: str, seconds: float) -> re.Match[str] | None:
        """None if no text that matches comes in time, or before the program's end."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.shown[self._seen :])) is None:
            if time.monotonic() > deadline or not self._read():
                return None
        self._seen += found.end()
        return found

    def _is_not_shown(self, pattern: str) -> AssertionError:
        return AssertionError(f"{pattern!r} is not shown: {self.shown[self._seen :]!r}")

    def _read(self) -> bool:
        """Takes what is shown within a moment; False if the program has ended."""
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A test run in the background ignores Ctrl-C, and so does what it starts; a shell at a terminal does not.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
