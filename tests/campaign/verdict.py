"""What comes of a schedule on real processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Verdict:
    """
    Attributes:
        problems: Every rule that was broken; empty if the schedule held.
        outcomes: How each request ended.
        fired: Orders that came to be, by point and action.
    """

    problems: list[str]
    outcomes: list[str]
    fired: list[str]
