"""The list of the points at which Rust code can be made to fail is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

RUST = Path(__file__).parents[3] / "rust"
POINT = re.compile(r'"((?:relay|router)\.[a-z_]+)"')


def test_every_point_in_rust_is_listed_and_no_other() -> None:
    code = [file.read_text() for room in ("relay", "router") for file in (RUST / room / "src").rglob("*.rs")]
    there = set(POINT.findall("\n".join(code)))
    listed = re.findall(r"^//! \| `([a-z_.]+)` \|", (RUST / "faults/src/lib.rs").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(there)
    assert len(listed) > 15
