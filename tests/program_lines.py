"""What a program says while it runs."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable

from waiting import PATIENCE


class Lines:
    """What a program says, line by line, as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def until(self, condition: Callable[[str], bool]) -> str:
        """The next line for which it holds. Fails where the program ends or says nothing for four minutes."""
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            if condition(line):
                return line
        raise AssertionError(f"it ended before that with {self.process.wait()}:\n{''.join(self.seen)}")

    def says(self, text: str) -> str:
        return self.until(lambda line: text in line)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(line)
            self._lines.put(line)
        self._lines.put(None)
