"""Each fuzz target is built, and begins with a corpus of its own."""

from __future__ import annotations

import tomllib
from pathlib import Path

FUZZ = Path(__file__).parents[3] / "rust" / "fuzz"


def test_each_is_built_and_has_a_corpus() -> None:
    files = {file.stem for file in (FUZZ / "fuzz_targets").glob("*.rs")}
    assert files
    built = {each["name"]: each["path"] for each in tomllib.loads((FUZZ / "Cargo.toml").read_text())["bin"]}
    assert built == {name: f"fuzz_targets/{name}.rs" for name in files}
    corpora = {folder.name: any(folder.iterdir()) for folder in (FUZZ / "corpus").iterdir()}
    assert corpora == dict.fromkeys(files, True)
