"""What a check found: a row for each way of asking, and a line for each answer that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sglang_omni.testing.ways import Way


class Difference(NamedTuple):
    """
    Attributes:
        case: Its name, or its number.
        way: How it was asked.
        told: What is wrong.
    """

    case: str
    way: Way
    told: str

    def __str__(self) -> str:
        return f"case {self.case}, {self.way}: {self.told}"


class Timing(NamedTuple):
    """
    Attributes:
        passed_s: Seconds in which all answers came.
        steps: What decoders stepped for them: frames of speech, or tokens without any; 0 if unknown.
    """

    passed_s: float
    answers: int
    steps: int

    def __str__(self) -> str:
        """Milliseconds an answer and, if steps are known, milliseconds a step."""
        a_step = f"{self.passed_s * 1000 / self.steps:.2f}" if self.steps else ""
        return f"{self.passed_s * 1000 / max(self.answers, 1):>9.1f} {a_step:>9}"


class Row(NamedTuple):
    """
    Attributes:
        cases: Answers that were compared.
        equal: Those that are right.
        note: What the numbers do not tell, such as that no prefix was found in a cache.
    """

    way: Way
    cases: int
    equal: int
    timing: Timing
    note: str = ""


class Report(NamedTuple):
    """
    Attributes:
        reference: Of its answers, each case once.
    """

    rows: Sequence[Row]
    differences: Sequence[Difference]
    reference: Timing

    @property
    def ok(self) -> bool:
        """True if answers were compared, and all are equal."""
        return any(row.cases for row in self.rows) and not self.differences

    @property
    def answers(self) -> int:
        """How many were compared."""
        return sum(row.cases for row in self.rows)

    def __str__(self) -> str:
        lines = [
            f"{'way':<16} {'equal':>9} {'ms each':>9} {'ms a step':>9}",
            f"{'reference':<16} {'':>9} {self.reference}".rstrip(),
            *(
                f"{row.way:<16} {f'{row.equal}/{row.cases}':>9} {row.timing}  {row.note}".rstrip()
                for row in self.rows
            ),
        ]
        # A case that is asked twice is told once.
        return "\n".join([*lines, *dict.fromkeys(map(str, self.differences))])
