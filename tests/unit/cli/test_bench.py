"""The parts of `sgl-omni bench serve` that need no server: when it sends, what it asks, and its figures."""

from __future__ import annotations

import asyncio
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from sglang_omni.bench.clips import RATE, Clips, read_clips, wav
from sglang_omni.bench.load import Load, run_load
from sglang_omni.bench.outcome import CallFailed, Outcome
from sglang_omni.bench.plot import plot
from sglang_omni.bench.prompts import Lengths, prompts_of
from sglang_omni.bench.summary import as_json, percentile, summarize
from sglang_omni.bench.table import table

LENGTHS = Lengths(input_len=20, output_len=8, range_ratio=0.5, prefix_len=50, num_prefixes=2)


def load(**fields: object) -> Load:
    return Load(**({"rate": math.inf, "concurrency": None, "count": 6, "duration": None, "seed": 0} | fields))  # type: ignore[arg-type]


async def test_so_many_at_once_and_no_more() -> None:
    running, most, asked = 0, 0, []

    async def ask(index: int, began: float, late: float) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        asked.append((index, late))

    await run_load(load(concurrency=2, count=7), ask, asyncio.Event())
    assert most == 2
    # Without a rate nothing is due before it is sent.
    assert sorted(asked) == [(index, 0.0) for index in range(7)]


async def test_the_wait_for_a_slow_server_counts_at_a_fixed_rate() -> None:
    """A thousand a second are due, and the server takes one each 20 ms: the last waits for all."""
    late = {}

    async def ask(index: int, began: float, late_s: float) -> None:
        late[index] = late_s
        await asyncio.sleep(0.02)

    await run_load(load(rate=1000.0, concurrency=1, count=5), ask, asyncio.Event())
    assert late[4] > 0.04
    assert late[4] > late[2] > late[1]


async def test_a_time_ends_the_sending() -> None:
    asked = itertools.count()

    async def ask(index: int, began: float, late: float) -> None:
        next(asked)
        await asyncio.sleep(0.001)

    await run_load(load(concurrency=1, count=None, duration=0.05), ask, asyncio.Event())
    assert next(asked) >= 1


async def test_what_runs_is_cancelled_when_it_is_stopped() -> None:
    stop, cancelled = asyncio.Event(), []

    async def ask(index: int, began: float, late: float) -> None:
        stop.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(index)
            raise

    await run_load(load(concurrency=1), ask, stop)
    assert cancelled == [0]


def test_times_of_a_rate_are_those_of_the_seed() -> None:
    first, again, other = (
        list(itertools.islice(load(rate=50.0, seed=seed).offsets(), 2000)) for seed in (1, 1, 2)
    )
    assert first == again != other
    # Two thousand at fifty a second take about forty seconds.
    assert 36 < first[-1] < 44


@pytest.mark.parametrize("dataset", ["questions", "random", "prefix_repetition"])
def test_datasets_are_those_of_the_seed(dataset: str) -> None:
    first, again, other = (
        [prompts_of(dataset, None, LENGTHS, seed)(n).text for n in range(9)] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_lengths_and_prefixes() -> None:
    random = prompts_of("random", None, LENGTHS, 0)
    lengths = {len(random(index).text.split()) for index in range(100)}
    assert min(lengths) >= 10
    assert max(lengths) <= 30
    assert len(lengths) > 10
    repeated = prompts_of("prefix_repetition", None, LENGTHS, 0)
    assert len({" ".join(repeated(index).text.split()[:50]) for index in range(40)}) == 2
    assert len({repeated(index).text for index in range(40)}) == 40


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('[{"conversations": [{"from": "human", "value": "Hi"}]}, {"conversations": []}]')
    assert prompts_of("sharegpt", file, LENGTHS, 0)(5).messages == [{"role": "user", "content": "Hi"}]
    file.write_text(
        '{"prompt": "a", "output_tokens": 3}\n\n{"messages": [{"role": "user", "content": "b"}]}\n'
    )
    bare = Lengths(1, None, 0, 1, 1)
    asked = {(p.text, p.output_len) for n in range(2) for p in [prompts_of("custom", file, bare, 0)(n)]}
    assert asked == {("a", 3), ("b", None)}
    file.write_text("")
    with pytest.raises(ValueError, match="holds no prompts"):
        prompts_of("custom", file, LENGTHS, 0)


def test_clips_are_resampled_and_never_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(np.zeros(RATE, np.int16)))
    (tmp_path / "a.txt").write_text("Hello.\n")
    (tmp_path / "backchannel.wav").write_bytes(b"no clip, and not read as one")
    clips = Clips(read_clips(tmp_path), seed=0)
    assert [(len(clip.samples), clip.text) for clip in clips.spoken] == [(RATE, "Hello.")]
    assert (clips.clip(0).samples != clips.clip(1).samples).any()
    assert abs(clips.clip(0).samples).max() <= 2
    (tmp_path / "b.wav").write_bytes(b"x")
    with pytest.raises(ValueError, match="no WAV file"):
        read_clips(tmp_path)


def outcome(began: float, texts: list[float], tokens: int) -> Outcome:
    return Outcome(began, ended=texts[-1], texts=texts, prompt_tokens=5, output_tokens=tokens)


def test_figures() -> None:
    good = [outcome(10.0, [10.1, 10.2, 10.4], 5), outcome(10.5, [11.0, 11.1], 2)]
    failed = Outcome(11.0, ended=12.0, error=CallFailed("HTTP 429", "too many"))
    summary = summarize([*good, failed], {"ttft": 200.0})
    spreads = {measure.key: of for measure, of in summary.spreads.items()}
    assert (summary.completed, summary.failed, summary.good) == (2, 1, 1)
    assert summary.duration == pytest.approx(2.0)
    assert (summary.prompt_tokens, summary.output_tokens, summary.cached_tokens) == (10, 7, None)
    assert spreads["ttft"].mean == pytest.approx(300.0)
    assert spreads["itl"].most == pytest.approx(200.0)
    # Four tokens after the first in 0.3 s, and one in 0.1 s.
    assert sorted(spreads["tpot"].percentiles.values()) == pytest.approx([75.0, 100.0, 100.0])
    assert "first_sound" not in spreads
    lines = "\n".join(table(summary, is_open=True))
    assert "1 x HTTP 429: too many" in lines
    assert "from when a request was due" in lines
    reported = as_json(summary, [*good, failed], {"model": "m"})
    assert reported["p99_ttft_ms"] == pytest.approx(500.0)
    assert reported["request_goodput"] == pytest.approx(0.5)
    assert [request["error"] for request in reported["requests"]] == [None, None, "HTTP 429: too many"]


def test_sound_is_heard_as_it_is_played() -> None:
    spoken = Outcome(0.0)
    spoken.hears(1.0, 0.5)
    spoken.hears(1.7, 0.5)
    spoken.ended = 1.7
    assert spoken.first_sound == pytest.approx(1.0)
    assert spoken.underrun == pytest.approx(0.2)
    assert spoken.rtf == pytest.approx(1.7)
    assert summarize([spoken], {}).run_dry == 1


def test_usage_of_the_server_replaces_what_is_counted() -> None:
    said = Outcome(0.0, texts=[1.0, 2.0])
    said.count_pieces()
    assert (said.output_tokens, said.counted) == (2, True)
    said.take_usage(
        {"prompt_tokens": 3, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}}
    )
    assert (said.output_tokens, said.counted, said.prompt_tokens, said.cached_tokens) == (9, False, 3, 1)


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, percent) for percent in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert percentile([7.0], 99) == 7.0


def test_a_plot_has_a_mark_for_each_request() -> None:
    failed = Outcome(1.0, error=CallFailed("timeout", ""))
    drawn = plot([outcome(0.0, [0.5], 1), outcome(0.2, [0.4], 1), failed], "a <run>")
    assert drawn.count("<circle") == 2
    assert drawn.count('class="x"') == 1
    assert "a &lt;run&gt;" in drawn
    assert "1 failed" in drawn
