"""Every family says what its reference says, in every way of asking: the short form of ``make parity``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest
from parity.__main__ import ENGINES, FAMILIES

from sglang_omni.testing import ALL_WAYS, Way

# What a family does not have, or not at all times: nothing is cached of speech and recordings, which no token
# tells; Whisper's and Kokoro's stages have no engine; and how full an omni model's pool becomes depends on
# its other stages.
_UNCACHED = ("csm", "fish_s2_pro", "higgs_audio_v2", "qwen3_asr", "qwen3_tts", "voxtral_realtime")
NOT_SEEN = {name: {Way.PREFIX} for name in _UNCACHED}
NOT_SEEN |= {name: {Way.RETRACTED} for name in ("qwen2_5_omni", "qwen3_omni")}
NOT_SEEN["kokoro"] = {Way.PREFIX, Way.CHUNKED, Way.RETRACTED}
NOT_SEEN["whisper"] = {Way.PREFIX, Way.CHUNKED, Way.RETRACTED}
# The slowest of those whose own tests compare tokens as well, and those whose references are installed for
# the long tests.
LONG = ("kokoro", "qwen3_omni", "qwen3_tts", "whisper")


def asked() -> Iterator[object]:
    """Each family's first shape on engine 'omni'; left to the long tests are the others, and SGLang's."""
    for name in FAMILIES:
        family = import_module(f"parity.{name}")
        first = next(iter(family.SHAPES))
        some, all_of = getattr(family, "SHAPE_ENGINES", {}), getattr(family, "ENGINES", ENGINES)
        for shape, engine in product(family.SHAPES, ENGINES):
            if engine in some.get(shape, all_of) and (shape == first or engine == "omni"):
                long = (shape, engine) != (first, "omni") or name in LONG
                marks = [pytest.mark.long] if long else []
                yield pytest.param(name, shape, engine, marks=marks, id=f"{name}-{shape}-{engine}")


@pytest.mark.parametrize(("name", "shape", "engine"), asked())
def test_answers_are_the_references_in_all_ways(name: str, shape: str, engine: str, tmp_path: Path) -> None:
    family = import_module(f"parity.{name}")
    subject = family.subject(tmp_path, 0, shape, engine)
    report = replace(subject, cases=subject.cases[:8]).check()
    assert report.ok, report
    if (shape, engine) == (next(iter(family.SHAPES)), "omni"):
        # A note says what of a way was not seen; beside those that were aborted, how many these were.
        seen = {row.way for row in report.rows if not row.note or row.way is Way.ABORTED}
        assert set(ALL_WAYS) - seen <= NOT_SEEN.get(name, set()), report
