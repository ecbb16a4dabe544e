"""The metrics as Prometheus' own library reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from sglang_omni.client import UsageInfo
from sglang_omni.serve.metrics import Metrics


def families(metrics: Metrics, gauges=None):
    return {family.name: family for family in text_string_to_metric_families(metrics.render(gauges or {}))}


def test_histogram_buckets_add_up():
    metrics = Metrics()
    for seconds in (0.005, 0.0051, 3.0, 1000.0):
        metrics.request_done("/x", 200, seconds)
    samples = families(metrics)["sglang_omni_request_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert (buckets["0.005"], buckets["0.01"], buckets["5"], buckets["120"]) == (1, 2, 3, 3)
    assert buckets["+Inf"] == next(s.value for s in samples if s.name.endswith("_count")) == 4


def test_counters_and_escaped_labels():
    metrics = Metrics()
    metrics.request_done('/a"b\\c\nd', 404, 0.1)
    metrics.finished(UsageInfo(5, 2, 7, 3))
    metrics.finished(None)
    found = families(metrics)
    (request,) = found["sglang_omni_requests"].samples
    assert request.labels == {"path": '/a"b\\c\nd', "status": "404"}
    tokens = {s.labels["kind"]: s.value for s in found["sglang_omni_tokens"].samples}
    assert tokens == {"prompt": 5, "completion": 2, "cached": 3}


def test_gauges():
    metrics = Metrics()
    metrics.finished(None, {"max_batch_size": 4, "of_its_own": 1})
    found = families(metrics, {"up": ("Whether.", {(): 1.0}), "load": ("L.", {(("stage", "a"),): 2.0})})
    assert found["sglang_omni_up"].samples[0].value == 1
    assert found["sglang_omni_decode_batch_size_max"].samples[0].value == 4
    assert found["sglang_omni_load"].samples[0].labels == {"stage": "a"}
