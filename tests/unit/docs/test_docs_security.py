"""docs/security.md names a test for every protection; each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs/security.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    python = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py")}
    rust = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("rust/**/*.rs"))
    missing = []
    for module, name in re.findall(r"`(test_\w+|rust)(?:::(\w+))?`", TEXT):
        if module == "rust":
            if f"fn {name}(" not in rust:
                missing.append(f"rust::{name}")
        elif module not in python or (name and f"def {name}(" not in python[module]):
            missing.append(f"{module}::{name}")
    assert not missing


def test_every_row_of_protections_names_a_test() -> None:
    section = TEXT.partition("## Protections")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| what ") and "---" not in row]
    assert len(rows) > 20
    assert [row for row in rows if not re.search(r"`(test_\w+|rust::\w+)", row)] == []
