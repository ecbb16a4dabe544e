"""Language models in every way of asking: the short form of ``make parity MODEL=text``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from parity import text

from sglang_omni.testing import Way


@pytest.mark.parametrize(
    ("shape", "engine"), [("llama", "omni"), pytest.param("qwen3", "sglang", marks=pytest.mark.long)]
)
def test_tokens_are_transformers_in_all_ways(shape: str, engine: str, tmp_path: Path) -> None:
    subject = text.subject(tmp_path, 0, shape, engine)
    report = replace(subject, cases=subject.cases[:8]).check()
    assert report.ok, report
    assert report.answers == 6 * 8 + 16
    seen = {row.way for row in report.rows if not row.note}
    assert {Way.PREFIX, Way.CHUNKED} <= seen
    if engine == "omni":
        # SGLang admits no more than its pool will hold.
        assert Way.RETRACTED in seen
