"""The last second of a clip is not heard alone, where Whisper invents sentences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_omni.models.speech_chat.components.whisper import _without_tail


@pytest.mark.parametrize(
    ("seeks", "seconds", "kept"),
    [
        ([0, 0, 2800, 2800], 28.8, 2),
        ([0, 0, 2600, 2800], 28.8, 3),
        ([0, 0, 2000], 28.8, 3),
        ([0], 0.4, 1),
        ([], 0.0, 0),
    ],
)
def test_segments_of_the_tail_are_left_out(seeks: list[int], seconds: float, kept: int) -> None:
    segments: list[Any] = [SimpleNamespace(seek=seek) for seek in seeks]
    assert list(_without_tail(segments, seconds)) == segments[:kept]
