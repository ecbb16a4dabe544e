"""The server's metrics, kept and written as text by ``prometheus_client``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from sglang_omni.generation.fields import UsageInfo
from sglang_omni.proto.stats import STATS_DESCRIPTIONS
from sglang_omni.scheduling.playback import Playback

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "sglang_omni_"
# Of vLLM and SGLang, so that their dashboards and alerts fit.
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0),
)
_INTER_TOKEN = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
_REQUEST = (
    *(0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0),
)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

# The first bucket of underruns counts streams without any.
_UNDERRUNS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REAL_TIME = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0)


class StageTotals(NamedTuple):
    """Requests that a stage is done with, and the seconds of work on them and of their other time there."""

    visits: float
    work: float
    wait: float


class Metrics:
    """What one server counts. Each server has its own, outside of the process-wide registry.

    Attributes:
        request_begins: Counts a request as being answered, until ``request_done`` or ``requests_lost``.
        queued: Counts the seconds that a request waited for its place.
    """

    request_begins: Callable[[], None]
    queued: Callable[[float], None]

    def __init__(self) -> None:
        self._requests = _counter("requests_total", "HTTP requests answered.", "path", "status")
        self._tokens = _counter("tokens_total", "Tokens read, generated, and found in the cache.", "kind")
        self._of_tenants = _counter(
            "tenant_requests_total",
            "HTTP requests answered to the clients that have a tenant's key.",
            *("tenant", "status"),
        )
        self._seconds = _histogram("request_seconds", "Time until a request was answered.", _SECONDS, "path")
        self._first_output = _histogram(
            "first_output_seconds", "Time until a streamed request's first output.", _SECONDS
        )
        self._time_to_first_token = _histogram(
            "time_to_first_token_seconds",
            "From a streamed request's arrival to its first text.",
            _FIRST_TOKEN,
        )
        self._inter_token_latency = interval_tally()
        self._request_latency = _histogram(
            "e2e_request_latency_seconds", "From a request's arrival to the end of its result.", _REQUEST
        )
        self._request_queue_time = _histogram(
            "request_queue_time_seconds",
            "Time that a request whose body is complete waited for a place.",
            _SECONDS,
        )
        self._finished_reasons = _counter(
            "request_success_total",
            "Results by how they ended; error and abort have none.",
            "finished_reason",
        )
        self._prompt_tokens = _counter("prompt_tokens_total", "Tokens of prompts.")
        self._generation_tokens = _counter("generation_tokens_total", "Tokens that were generated.")
        self._cached_tokens = _counter(
            "cached_tokens_total", "Tokens of prompts that were found in the cache."
        )
        self._stage_visits = _counter("stage_visits_total", "Requests that the stage is done with.", "stage")
        self._stage_work = _counter(
            "stage_work_seconds_total",
            "Work on these requests; a step of several counts in full for each.",
            "stage",
        )
        self._stage_wait = _counter(
            "stage_wait_seconds_total",
            "Time that these requests were there besides: in queues, or until their input came.",
            "stage",
        )
        self._first_audio = _histogram(
            "time_to_first_audio_seconds", "Time until a streamed answer's first sound.", _SECONDS
        )
        self._underrun = _histogram(
            "audio_underrun_seconds",
            "Time for which the player of a streamed answer had no sound, after the first.",
            _UNDERRUNS,
        )
        self._real_time_factor = _histogram(
            "audio_real_time_factor",
            "Seconds until a streamed answer's last sound, for each second of sound.",
            _REAL_TIME,
        )
        self._in_flight = _gauge("requests_in_flight", "HTTP requests being answered.")
        self._websockets = _counter(
            "websockets_total", "WebSockets that have ended, or were refused.", "path", "status"
        )
        self.open_websockets = _gauge("websockets_open", "WebSockets that are open.")
        self._slow_clients = _counter(
            "slow_clients_total", "Clients that were cut because they took their answers too slowly."
        )
        self.request_begins = self._in_flight.inc
        self.queued = self._request_queue_time.observe
        self.finished(UsageInfo())

    def requests_lost(self, count: int) -> None:
        """The process of so many requests has died before it answered them."""
        self._in_flight.dec(count)

    def request_done(self, path: str, status: int, seconds: float, tenant: str | None = None) -> None:
        """Count an answered request.

        Args:
            path: The path of its route, not the one that was asked for: clients must not make up labels.
            seconds: Time from its head to the end of its answer.
            tenant: The one whose key it showed, if any.
        """
        self._in_flight.dec()
        if tenant is not None:
            self._of_tenants.labels(tenant, status).inc()
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def websocket_done(self, path: str, status: int) -> None:
        """Count a WebSocket that has ended. ``status``: 101, or what it was refused with."""
        self._websockets.labels(path, status).inc()

    def client_cut(self) -> None:
        """Count a client that was cut because it took its answer too slowly."""
        self._slow_clients.inc()

    def first_output(self, seconds: float) -> None:
        self._first_output.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """Count a streamed request's first text, ``seconds`` after its arrival."""
        self._time_to_first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """Count a later token, ``seconds`` after the one before it."""
        self._inter_token_latency.observe(seconds)

    def next_tokens(self, counts: Sequence[int], total: float) -> None:
        """Count later tokens of another process, as its ``Tally`` has them."""
        self._inter_token_latency.add(counts, total)

    def generation_done(self, finish_reason: str, seconds: float, usage: UsageInfo | None) -> None:
        """Count a request that the pipeline is done with, ``seconds`` after its arrival."""
        self._finished_reasons.labels(finish_reason).inc()
        self._request_latency.observe(seconds)
        if usage is not None:
            self._prompt_tokens.inc(max(0, usage.prompt_tokens or 0))
            self._generation_tokens.inc(max(0, usage.completion_tokens or 0))
            self._cached_tokens.inc(max(0, usage.cached_tokens or 0))

    def stage_visited(self, stage: str, work: float, wait: float) -> None:
        """Count a request that a stage is done with, and its seconds there."""
        self._stage_visits.labels(stage).inc()
        self._stage_work.labels(stage).inc(max(0.0, work))
        self._stage_wait.labels(stage).inc(max(0.0, wait))

    def stage_totals(self) -> dict[str, StageTotals]:
        """What ``stage_visited`` has counted, by stage."""
        columns = [
            {
                sample.labels["stage"]: sample.value
                for family in counter.collect()
                for sample in family.samples
                if sample.name.endswith("_total")
            }
            for counter in (self._stage_visits, self._stage_work, self._stage_wait)
        ]
        return {stage: StageTotals(*(column[stage] for column in columns)) for stage in columns[0]}

    def played(self, playback: Playback) -> None:
        """Count what a listener has heard, if there was any sound."""
        if playback.first_sound is not None and playback.real_time_factor is not None:
            self.heard(playback.first_sound, playback.underrun_s, playback.real_time_factor)

    def heard(self, first_sound: float, underrun_s: float, real_time_factor: float) -> None:
        """Count a stream of sound, by the numbers of its ``Playback``."""
        self._first_audio.observe(first_sound)
        self._underrun.observe(underrun_s)
        self._real_time_factor.observe(real_time_factor)

    def finished(self, usage: UsageInfo | None) -> None:
        """Count the tokens of a request's result."""
        if usage is None:
            return
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("completion", usage.completion_tokens),
            ("cached", usage.cached_tokens),
        ):
            # No request fails over a count below 0, which a counter would refuse.
            self._tokens.labels(kind).inc(max(0, count or 0))

    def render(self, families: Iterable[Metric] = ()) -> bytes:
        """All metrics in Prometheus' text format.

        Args:
            families: Metrics that are read only when asked for; those without a sample are left out.
        """
        heard = (self._first_audio, self._underrun, self._real_time_factor)
        counted = [
            _as_documented(family)
            for metric in (
                *(self._requests, self._of_tenants, self._tokens, self._seconds, self._first_output),
                *(self._in_flight, self._websockets, self.open_websockets, self._slow_clients),
                *(self._time_to_first_token, self._inter_token_latency, self._request_latency),
                *(self._request_queue_time, self._finished_reasons),
                *(self._prompt_tokens, self._generation_tokens, self._cached_tokens),
                *(self._stage_visits, self._stage_work, self._stage_wait),
                *heard,
            )
            for family in metric.collect()
        ]
        return generate_latest(_Page([*counted, *(family for family in families if family.samples)]))


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(_PREFIX + name, text, labels, registry=None)


def _gauge(name: str, text: str) -> Gauge:
    return Gauge(_PREFIX + name, text, registry=None)


def _histogram(name: str, text: str, bounds: Sequence[float], *labels: str) -> Histogram:
    return Histogram(_PREFIX + name, text, labels, buckets=bounds, registry=None)


class Tally:
    """A histogram that one thread observes, for every token: the library's takes ten times as long."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = _PREFIX + name
        self._text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Adds what ``take`` of another one returned."""
        self._counts = [own + more for own, more in zip(self._counts, counts, strict=True)]
        self._sum += total

    def take(self) -> tuple[list[int], float] | None:
        """How many were in each bucket since the last call, and their sum; None if there were none."""
        if not any(self._counts):
            return None
        taken = self._counts, self._sum
        self._counts, self._sum = [0] * len(self._counts), 0.0
        return taken

    def collect(self) -> Iterable[Metric]:
        bounds = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], buckets, self._sum)
        return [family]


def interval_tally() -> Tally:
    """Counts the times between tokens."""
    return Tally(
        "inter_token_latency_seconds",
        "Between two pieces of a streamed text, divided by the tokens of the later one.",
        _INTER_TOKEN,
    )


class _Page(NamedTuple):
    """What ``generate_latest`` takes for a registry."""

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.families


def _as_documented(family: Metric) -> Metric:
    """Without the times of creation, and with whole bounds of buckets as ``le="5"``, not ``le="5.0"``."""
    kept = [sample for sample in family.samples if not sample.name.endswith("_created")]
    family.samples = [
        sample._replace(labels={**sample.labels, "le": sample.labels["le"].removesuffix(".0")})
        if "le" in sample.labels
        else sample
        for sample in kept
    ]
    return family


def family(name: str, text: str, values: float | Mapping[str, float], *, label: str = "") -> Metric:
    """A metric with the values of this moment: a counter if its name ends with ``_total``, else a gauge.

    Args:
        name: Without the prefix that all metrics here have.
        text: The help text.
        values: By the value of ``label``; a number alone has no label.
    """
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    metric = kind(_PREFIX + name, text, labels=[label] if label else [])
    for value, number in (values if isinstance(values, Mapping) else {"": values}).items():
        metric.add_metric([value] if label else [], number)
    return metric


def stage_families(stats: Mapping[str, Mapping[str, float]]) -> Iterable[Metric]:
    """``stage_...`` metrics from what each stage reports, by its name."""
    by_name: dict[str, dict[str, float]] = {}
    batches: dict[str, float] = {}
    for stage, numbers in stats.items():
        for name, value in numbers.items():
            by_name.setdefault(name, {})[stage] = value
        if "generation_tokens_total" in numbers and "max_batch_size" in numbers:
            batches[stage] = numbers["max_batch_size"]
    for name, values in by_name.items():
        text = STATS_DESCRIPTIONS.get(name, "Reported by the stage.")
        yield family(f"stage_{name}", text, values, label="stage")
    yield family("decode_batch_size_max", STATS_DESCRIPTIONS["max_batch_size"], batches, label="stage")
