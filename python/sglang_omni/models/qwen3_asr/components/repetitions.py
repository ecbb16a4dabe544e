"""Loops of a transcript, in which the model writes one thing over and over: one of them is kept.

What is removed is what ``detect_and_fix_repetitions`` of Qwen3-ASR's authors removes from a whole answer
(``qwen_asr/inference/utils.py``): first a character that comes more than 20 times in a row, then any text of
up to 20 characters that comes 20 times in a row or more, where at least 40 characters are left.
"""

from __future__ import annotations

import re

TIMES, LONGEST = 20, 20
# The authors look for a loop only where so many characters are left.
_LEAST = 2 * TIMES
_RUN = re.compile(rf"(.)\1{{{TIMES - 1}}}", re.DOTALL)


class WithoutLoops:
    """A text without its loops, while it is written: pieces, of which none is ever taken back.

    Text that may be the second time of a loop is kept back until that is known.
    """

    def __init__(self) -> None:
        # The character written last, and how often in a row.
        self._character, self._count = "", 0
        # Text from the first place on at which a loop may begin, and how much of it is out already.
        self._rest, self._out = "", 0

    def add(self, new: str) -> str:
        """The piece that is certain with the text ``new``."""
        passed = []
        for character in new:
            if character == self._character:
                self._count += 1
            else:
                passed += [self._run_beyond_first(), character]
                self._character, self._count = character, 1
        return self._advance("".join(passed), final=False)

    def finish(self) -> str:
        """The last piece."""
        return self._advance(self._run_beyond_first(), final=True)

    def _run_beyond_first(self) -> str:
        return self._character * (self._count - 1) if self._count <= TIMES else ""

    def _advance(self, new: str, *, final: bool) -> str:
        self._rest += new
        certain = ""
        while len(self._rest) >= _LEAST:
            period = _loop(self._rest, final=final)
            if period is None:
                break
            kept, end = period or 1, period or 1
            if period:
                end = _end(self._rest, period)
                if not final and self._rest.startswith(self._rest[end:]):
                    # It may go on.
                    self._rest = self._rest[: TIMES * period] + self._rest[end:]
                    break
            certain += self._rest[self._out : kept]
            self._rest, self._out = self._rest[end:], max(0, self._out - kept)
        known = len(self._rest)
        if not final:
            known -= _repeated(self._rest)
            if run := _RUN.search(self._rest):
                known = min(known, run.start() + 1)
        certain += self._rest[self._out : known]
        self._out = max(self._out, known)
        return certain


def _loop(text: str, *, final: bool) -> int | None:
    """The length of what the text repeats from its beginning on; 0 if it does not; None if that is open."""
    for period in range(1, LONGEST + 1):
        times = text[: TIMES * period]
        if times.startswith(times[period:]):
            if len(times) == TIMES * period:
                return period
            if not final:
                return None
    return 0


def _end(text: str, period: int) -> int:
    """Where the last of the times ends that ``text`` begins with."""
    end = TIMES * period
    while text.startswith(text[:period], end):
        end += period
    return end


def _repeated(text: str) -> int:
    """Characters at the end that may not be the first time of what they repeat."""
    longest = 0
    for period in range(1, min(LONGEST + 1, len(text))):
        length = 0
        while length < len(text) - period and text[-1 - length] == text[-1 - length - period]:
            length += 1
        longest = max(longest, length)
    return longest
