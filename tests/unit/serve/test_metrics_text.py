"""The metrics as Prometheus' own library reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from sglang_omni.client import UsageInfo
from sglang_omni.scheduling.playback import Playback
from sglang_omni.serve.metrics import Metrics, family, stage_families


def families(metrics: Metrics, live=()):
    text = metrics.render(live).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_histogram_buckets_add_up():
    metrics = Metrics()
    for seconds in (0.005, 0.0051, 3.0, 1000.0):
        metrics.request_done("/x", 200, seconds)
    samples = families(metrics)["sglang_omni_request_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert (buckets["0.005"], buckets["0.01"], buckets["5"], buckets["120"]) == (1, 2, 3, 3)
    assert buckets["+Inf"] == next(s.value for s in samples if s.name.endswith("_count")) == 4


def test_sums_keep_their_digits():
    """After months a sum still grows by what was added: rate() is a difference of two of them."""
    metrics = Metrics()
    metrics.request_done("/x", 200, 12_345_678.0)
    metrics.request_done("/x", 200, 0.015625)
    metrics.finished(UsageInfo(prompt_tokens=2**53 - 1))
    live = [family("relay_written_bytes_total", "B.", 2**53 - 1), family("load", "L.", 0.1 + 0.2)]
    found = families(metrics, live)
    sums = {s.name: s.value for s in found["sglang_omni_request_seconds"].samples if "bucket" not in s.name}
    assert sums["sglang_omni_request_seconds_sum"] == 12_345_678.015625
    tokens = {s.labels["kind"]: s.value for s in found["sglang_omni_tokens"].samples}
    assert tokens["prompt"] == 2**53 - 1
    assert found["sglang_omni_relay_written_bytes"].samples[0].value == 2**53 - 1
    assert found["sglang_omni_load"].samples[0].value == 0.1 + 0.2


def test_counters_and_escaped_labels():
    metrics = Metrics()
    metrics.request_done('/a"b\\c\nd', 404, 0.1)
    metrics.finished(UsageInfo(5, 2, 7, 3))
    metrics.finished(None)
    metrics.finished(UsageInfo(-1))
    found = families(metrics)
    (request,) = found["sglang_omni_requests"].samples
    assert request.labels == {"path": '/a"b\\c\nd', "status": "404"}
    tokens = {s.labels["kind"]: s.value for s in found["sglang_omni_tokens"].samples}
    assert tokens == {"prompt": 5, "completion": 2, "cached": 3}


def test_what_listeners_hear():
    metrics = Metrics()
    for late in (1.0, 2.5):  # the second piece, when the first has been played, and a second and a half later
        playback = Playback(began=0.0)
        playback.feed(0.25, 0.75)
        playback.feed(late, 2.0)
        metrics.played(playback)
    metrics.played(Playback(began=0.0))  # silence

    def samples(name):
        return {
            s.name.rpartition("_")[2] + s.labels.get("le", ""): s.value
            for s in families(metrics)[f"sglang_omni_{name}"].samples
        }

    first = samples("time_to_first_audio_seconds")
    assert (first["count"], first["sum"], first["bucket0.1"], first["bucket0.25"]) == (2, 0.5, 0, 2)
    underrun = samples("audio_underrun_seconds")
    assert (underrun["count"], underrun["sum"], underrun["bucket0"], underrun["bucket2.5"]) == (2, 1.5, 1, 2)
    factor = samples("audio_real_time_factor")
    assert (factor["count"], factor["sum"]) == (2, 3.5 / 2.75)


def test_no_series_tell_when_a_metric_was_created():
    metrics = Metrics()
    metrics.request_done("/x", 200, 0.1)
    assert b"_created" not in metrics.render()


def test_gauges():
    live = [family("up", "Whether.", True), family("load", "L.", {"a": 2.0}, label="stage")]
    found = families(Metrics(), [*live, family("empty", "E.", {}, label="stage")])
    assert found["sglang_omni_up"].samples[0].value == 1
    assert found["sglang_omni_load"].samples[0].labels == {"stage": "a"}
    assert "sglang_omni_empty" not in found


def test_what_stages_report():
    thinker = {"num_running_reqs": 3, "generation_tokens_total": 123_456_789, "max_batch_size": 4}
    encoder = {"num_running_reqs": 1, "max_batch_size": 9, "of_its_own": 0.5}
    found = families(Metrics(), stage_families({"thinker": thinker, "image_encoder": encoder}))

    def values(name):
        return {s.labels["stage"]: s.value for s in found[f"sglang_omni_{name}"].samples}

    assert values("stage_num_running_reqs") == {"thinker": 3, "image_encoder": 1}
    assert values("stage_max_batch_size") == {"thinker": 4, "image_encoder": 9}
    assert values("stage_generation_tokens") == {"thinker": 123_456_789}
    assert values("stage_of_its_own") == {"image_encoder": 0.5}
    assert values("decode_batch_size_max") == {"thinker": 4}
    kinds = {
        name: found[f"sglang_omni_stage_{name}"].type for name in ("num_running_reqs", "generation_tokens")
    }
    assert kinds == {"num_running_reqs": "gauge", "generation_tokens": "counter"}
