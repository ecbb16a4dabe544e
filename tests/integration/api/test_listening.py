"""What listeners hear of streamed answers is in ``/metrics``."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from scripted_pipeline import ScriptedPipeline
from waiting import PATIENCE

SPOKEN = {
    "messages": [{"role": "user", "content": "Hello?"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "default", "format": "pcm16"},
    "stream": True,
}
SPEECH = {"model": "scripted", "input": "Hello.", "voice": "default", "response_format": "pcm"}
# Between the three pieces of sound.
PAUSE = 0.05
GAPS = 2 * (PAUSE - 160 / 24_000)


def value(http: httpx.Client, pattern: str) -> float:
    found = re.search(rf"^sglang_omni_{pattern} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def heard(http: httpx.Client) -> dict[str, float]:
    names = ("time_to_first_audio_seconds", "audio_underrun_seconds", "audio_real_time_factor")
    return {f"{name}_{part}": value(http, f"{name}_{part}") for name in names for part in ("count", "sum")}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", SPOKEN),
        ("/v1/audio/speech", SPEECH | {"stream": True}),
        ("/v1/audio/speech", SPEECH | {"stream_format": "sse"}),
    ],
)
def test_a_stream_with_gaps(
    http: httpx.Client, pipeline: ScriptedPipeline, path: str, body: dict[str, object]
) -> None:
    before, pipeline.pause = heard(http), PAUSE
    assert http.post(path, json=body).status_code == 200

    after = heard(http)
    grown = {name: after[name] - before[name] for name in after}
    assert [grown[name] for name in grown if name.endswith("_count")] == [1, 1, 1]
    assert grown["audio_underrun_seconds_sum"] >= GAPS
    assert grown["time_to_first_audio_seconds_sum"] >= PAUSE
    # 0.02 s of sound, whose last third came after three pauses.
    assert grown["audio_real_time_factor_sum"] >= 3 * PAUSE / 0.02


def test_a_listener_who_leaves_counts_too(http: httpx.Client, pipeline: ScriptedPipeline) -> None:
    before, pipeline.hangs_after = heard(http), len(pipeline.words) + 2
    with http.stream("POST", "/v1/chat/completions", json=SPOKEN) as answer:
        pieces = answer.iter_lines()
        while '"data"' not in next(pieces):
            pass
    assert pipeline.was_aborted(pipeline.requests[-1][0])

    left_by = time.monotonic() + PATIENCE
    while (after := heard(http)) == before and time.monotonic() < left_by:
        time.sleep(0.01)
    assert after["audio_underrun_seconds_count"] == before["audio_underrun_seconds_count"] + 1


def test_no_listener_no_measure(http: httpx.Client) -> None:
    before = heard(http)
    written = {"messages": SPOKEN["messages"]}
    for path, body in (
        ("/v1/chat/completions", written | {"stream": True}),
        ("/v1/chat/completions", SPOKEN | {"stream": False}),
        ("/v1/audio/speech", SPEECH),
    ):
        assert http.post(path, json=body).status_code == 200
    assert heard(http) == before
