"""What docs/playback.md says of metrics and deadlines is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from prometheus_client.parser import text_string_to_metric_families

from sglang_omni.models.speech_chat import speak
from sglang_omni.scheduling import code2wav_scheduler, turns
from sglang_omni.scheduling.code2wav_scheduler import Chunking
from sglang_omni.scheduling.playback import Playback
from sglang_omni.serve.metrics import Metrics

TEXT = (Path(__file__).parents[3] / "docs" / "playback.md").read_text()


def test_metrics_of_listeners() -> None:
    metrics = Metrics()
    silent = metrics.render()
    playback = Playback(began=0.0)
    playback.feed(1.0, 1.0)
    metrics.played(playback)
    before, after = (
        {family.name: family for family in text_string_to_metric_families(page.decode())}
        for page in (silent, metrics.render())
    )
    counted = {name for name in after if after[name].samples != before[name].samples}

    rows = dict(re.findall(r"^\| `(sglang_omni_\w+)` \| histogram \| (.+) \|$", TEXT, re.MULTILINE))
    assert rows == {name: after[name].documentation for name in counted}
    assert all(after[name].type == "histogram" for name in counted)


def test_policies_and_deadlines() -> None:
    assert re.findall(r"^\| `(\w+)`(?: \([^)]*\))? \| the request", TEXT, re.MULTILINE) == list(
        get_args(turns.SchedulePolicy)
    )
    assert f"{turns.FIRST_SOUND_S:g} s after the request came" in TEXT
    assert f"{turns.WHOLE_ANSWER_S:g} s after its last turn" in TEXT
    assert f"less than {speak.LEAST_IN_HAND_S:g} s in hand" in TEXT
    assert code2wav_scheduler.SHARE_OF_SOUND_IN_HAND == 0.5  # "at most half"
    sizes = ", ".join(map(str, Chunking(chunk_size=25).sizes))
    assert f"({sizes} frames)" in TEXT
