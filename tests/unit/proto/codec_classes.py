"""Classes of a user's own, for the test of the codec between two processes."""

from __future__ import annotations

import dataclasses
import enum


class Kind(enum.Enum):
    EXACT = "exact"


@dataclasses.dataclass
class Ratio:
    value: int
    kind: Kind
