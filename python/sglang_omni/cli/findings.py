"""How commands print findings: a line each, with what mends it below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_omni.diagnosis import Finding

_MARKS = {"ok": "ok  ", "missing": "-   ", "warn": "warn", "fail": "FAIL"}


def print_findings(findings: Sequence[Finding]) -> None:
    """One line for each, its mark in front."""
    for finding in findings:
        print(f"{_MARKS[finding.status]}  {finding.name}: {finding.text}")
        if finding.mend:
            print(f"      -> {finding.mend}")
