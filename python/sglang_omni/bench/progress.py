"""How a run goes, while it goes: one line that changes in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time

_SHOWN_EVERY_S = 0.5
_WRITTEN_EVERY_S = 10.0


class Progress:
    """
    Args:
        count: How many requests there will be; None if time ends the run.
        duration: Seconds after which none is sent any more; None for no end.
    """

    def __init__(self, count: int | None, duration: float | None) -> None:
        self._count = count
        self._duration = duration
        self._out = sys.stderr
        self._live = sys.stderr.isatty()
        self._began = time.perf_counter()
        self.sent = self.ended = self.failed = 0

    async def show(self) -> None:
        """Shows the counts until it is cancelled."""
        while True:
            await asyncio.sleep(_SHOWN_EVERY_S if self._live else _WRITTEN_EVERY_S)
            self.note(self.line())
            if not self._live:
                print(self.line(), file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Shows a line in the terminal, in the place of the one before."""
        if self._live:
            self._out.write(f"\r\x1b[K{text}")
            self._out.flush()

    def clear(self) -> None:
        """Takes the line away that changes."""
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def line(self) -> str:
        """The counts so far."""
        seconds = time.perf_counter() - self._began
        of = f" of {self._count}" if self._count is not None else ""
        until = f" of {self._duration:g}" if self._duration is not None else ""
        return (
            f"{seconds:.0f}{until} s: {self.ended}{of} ended, {self.ended / seconds:.1f}/s, "
            f"{self.sent - self.ended} under way, {self.failed} failed"
        )
