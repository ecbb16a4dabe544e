"""What is seen of a fleet: one trace over router, servers and stages, metrics of all workers, profiles."""

from __future__ import annotations

import json
import random
import re
import string
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from otlp_collector import Collector, KeptSpan, collecting
from prometheus_client.parser import text_string_to_metric_families
from served_process import importing, served_process
from waiting import PATIENCE, wait_until

from sglang_omni.cli.trace import main as trace_command
from sglang_omni.proto.stats import STATS_DESCRIPTIONS

HERE = Path(__file__).parent
DASHBOARD = HERE.parents[1] / "deploy" / "grafana" / "sglang-omni.json"
CONFIG = """
model_path: none
name: spelling
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: upper, process: a, factory: served_stages.upper, next: spell}}
  - {{name: spell, process: b, factory: traced_stages.Speller, terminal: true}}
"""
SERVER, INTERNAL = 2, 1


@dataclass
class Seen:
    base_url: str
    http: httpx.Client
    collector: Collector
    folder: Path

    def spell(self, prompt: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "model": "spelling", "stream": True} | fields
        answer = self.http.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer

    def metrics(self) -> dict[str, Any]:
        text = self.http.get("/metrics").text
        found = list(text_string_to_metric_families(text))
        names = [family.name for family in found]
        assert len(names) == len(set(names)), "a family of several workers must stand together"
        return {family.name: family for family in found}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("seen")
    config = folder / "pipeline.yaml"
    config.write_text(CONFIG.format(folder=folder))
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        collects = ("--otlp-traces-endpoint", collector.url.removesuffix("/v1/traces"))
        env = importing(HERE) | {
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        start = served_process(folder / "log", "--config", str(config), "--dp-size", "2", *collects, env=env)
        url = stack.enter_context(start).base_url
        http = stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE))
        yield Seen(url, http, collector, folder)


def test_one_trace_leads_through_router_server_stages_and_steps(seen: Seen) -> None:
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace_id}-{parent}-01", "tracestate": "vendor=1", "x-request-id": "one"}
    seen.spell("hello", headers)

    def collected() -> list[KeptSpan]:
        return seen.collector.of_trace(trace_id)

    wanted = {"upper", "spell", "prefill", "decode"}
    wait_until(lambda: {span.name for span in collected()} >= wanted, lambda: f"{collected()}")
    wait_until(lambda: {"sglang-omni-router"} <= {s.service for s in collected()}, lambda: f"{collected()}")
    spans = {span.span_id: span for span in collected()}
    (router,) = [span for span in spans.values() if span.service == "sglang-omni-router"]
    assert (router.parent_id, router.kind, router.state) == (parent, SERVER, "vendor=1")
    assert router.attributes["sglang_omni.request_id"] == "one"
    (server,) = [span for span in spans.values() if span.parent_id == router.span_id]
    assert (server.service, server.kind, server.state) == ("sglang-omni", SERVER, "vendor=1")
    reported = server.attributes
    assert reported["gen_ai.operation.name"] == "text_completion"
    assert (reported["gen_ai.usage.input_tokens"], reported["gen_ai.usage.output_tokens"]) == ("5", "4")
    assert reported["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "stop"}]}
    assert reported["http.response.status_code"] == "200"
    assert 0 < reported["gen_ai.latency.time_to_first_token"] < reported["gen_ai.latency.e2e"]
    of_server = {span.name: span for span in spans.values() if span.parent_id == server.span_id}
    assert of_server.keys() == {"pipeline", "upper", "spell"}
    assert of_server["upper"].start <= of_server["spell"].start
    steps = sorted(
        (span for span in spans.values() if span.parent_id == of_server["spell"].span_id),
        key=lambda span: span.start,
    )
    assert [step.name for step in steps if step.name in wanted] == ["prefill", "decode", "decode"]
    for span in spans.values():
        assert span.start <= span.end
        if (above := spans.get(span.parent_id)) is not None and above is not router:
            slack = 5_000_000 if above is server else 1_000  # Clocks are read in several processes.
            assert above.start - slack <= span.start, (above, span)
            assert span.end <= above.end + slack, (above, span)
    assert all(
        path == "/v1/traces" and reported["x-tenant"] == "a b" for path, reported in seen.collector.paths
    )


def test_a_caller_that_does_not_record_is_not_recorded(seen: Seen) -> None:
    quiet, loud = "1" * 32, "2" * 32
    seen.spell("hello", {"traceparent": f"00-{quiet}-{'3' * 16}-00"})
    seen.spell("hello", {"traceparent": f"00-{loud}-{'3' * 16}-01"})
    wait_until(lambda: len(seen.collector.of_trace(loud)) >= 4, lambda: "no spans")
    assert seen.collector.of_trace(quiet) == []


def test_the_routers_metrics_have_those_of_every_worker(seen: Seen) -> None:
    def by_worker(name: str, sample: str, **labels: str) -> dict[str, float]:
        return {
            s.labels["worker"]: s.value
            for s in seen.metrics()[f"sglang_omni_{name}"].samples
            if s.name == f"sglang_omni_{sample}" and labels.items() <= s.labels.items()
        }

    first: dict[str, float] = {}
    while len([count for count in first.values() if count >= 1]) < 2:
        seen.spell("".join(random.choices(string.ascii_letters, k=5)))  # A prompt that no worker knows.
        first = by_worker("time_to_first_token_seconds", "time_to_first_token_seconds_count")
    assert first.keys() == {"0", "1"}
    assert by_worker("inter_token_latency_seconds", "inter_token_latency_seconds_count") == {
        worker: 2 * count for worker, count in first.items()
    }
    assert by_worker("e2e_request_latency_seconds", "e2e_request_latency_seconds_count") == first
    assert by_worker("request_queue_time_seconds", "request_queue_time_seconds_count") == first
    assert by_worker("request_success", "request_success_total", finished_reason="stop") == first
    assert by_worker("prompt_tokens", "prompt_tokens_total") == {w: 5 * n for w, n in first.items()}
    assert by_worker("generation_tokens", "generation_tokens_total") == {w: 4 * n for w, n in first.items()}
    # Stages report a moment after the answer.
    wait_until(
        lambda: by_worker("stage_visits", "stage_visits_total", stage="spell") == first, lambda: f"{first}"
    )
    work = by_worker("stage_work_seconds", "stage_work_seconds_total", stage="spell")
    assert all(seconds >= 0.03 * first[worker] for worker, seconds in work.items())


def test_a_requests_trace_is_a_file_for_perfetto(
    seen: Seen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = seen.spell("hello", {"x-request-id": "in/the~file"})
    answer_id = re.search(r'"id":"(cmpl-[^"]+)"', answer.text)
    assert answer_id is not None
    wait_for_slices(seen, answer_id[1], {"upper", "spell", "prefill", "decode"})
    out = tmp_path / "trace.json"
    assert trace_command([answer_id[1], "--url", seen.base_url, "-o", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(names.values()) == {"server", "a", "b"}
    threads = {e["tid"]: (names[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    found = defaultdict(list)
    for each in slices:
        found[threads[each["tid"]]].append(each["name"])
    assert found["a", "upper"][0] == "upper"
    assert [name for name in found["b", "spell"] if name in ("prefill", "decode")] == [
        *("prefill", "decode", "decode")
    ]
    assert found["server", "requests"][:2] == ["POST /v1/completions", "completion"]
    check_nesting(slices)
    arrows = defaultdict(list)
    for each in events:
        if each["ph"] in "sf":
            arrows[each["id"]].append((each["ph"], each["name"], threads[each["tid"]][1]))
    assert sorted(tuple(arrow) for arrow in arrows.values()) == [
        (("s", "payload", "upper"), ("f", "payload", "spell")),
        (("s", "request", "requests"), ("f", "request", "upper")),
        (("s", "result", "spell"), ("f", "result", "requests")),
    ]
    assert trace_command(["nobody", "--url", seen.base_url]) == 1
    assert "no request 'nobody' is known" in capsys.readouterr().err


def wait_for_slices(seen: Seen, request_id: str, names: set[str]) -> None:
    """Stages report what they did a moment after the answer."""

    def reported() -> set[str]:
        events = seen.http.get(f"/traces/{request_id}").json()["traceEvents"]
        return {event["name"] for event in events if event["ph"] == "X"}

    wait_until(lambda: names <= reported(), lambda: f"{names - reported()} of {request_id} never came")


def check_nesting(slices: list[dict[str, Any]]) -> None:
    """Slices of a track lie within each other or apart, or else no viewer can draw them."""
    tracks = defaultdict(list)
    for each in slices:
        tracks[each["pid"], each["tid"]].append((each["ts"], -each["dur"], each["name"]))
    for track in tracks.values():
        open_ends: list[float] = []
        for start, minus, name in sorted(track, key=lambda piece: (piece[0], piece[1])):
            while open_ends and open_ends[-1] <= start + 0.5:
                open_ends.pop()
            assert not open_ends or start - minus <= open_ends[-1] + 0.5, name
            open_ends.append(start - minus)


def test_a_profile_has_all_requests_of_every_worker(seen: Seen, tmp_path: Path) -> None:
    body = {"output_dir": str(tmp_path), "profile_id": "trial"}
    begun = seen.http.post("/start_profile", json=body)
    assert begun.status_code == 200, begun.text
    again = seen.http.post("/start_profile")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "profile_running")
    for _ in range(4):
        wait_for_slices(seen, seen.spell("hello").headers["x-request-id"], {"upper", "spell"})
    ended = seen.http.post("/stop_profile").json()["workers"]
    counts = [worker["answer"]["requests"] for worker in ended]
    assert sum(counts) == 4
    files = [Path(worker["answer"]["file"]) for worker in ended]
    assert len(set(files)) == 2
    for path, count in zip(files, counts, strict=True):
        assert path.name.startswith("trial-")
        slices = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
        assert [e["name"] for e in slices].count("spell") == count
        check_nesting(slices)
    nothing = seen.http.post("/stop_profile")
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (409, "no_profile")
    refused = seen.http.post("/start_profile", json={"num_steps": 5})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "num_steps")


def test_the_dashboard_asks_for_metrics_and_labels_that_exist(seen: Seen) -> None:
    seen.spell("hello")
    labels: dict[str, set[str]] = defaultdict(set)
    for family in seen.metrics().values():
        for sample in family.samples:
            labels[sample.name] |= sample.labels.keys()
    # Of engines, which this pipeline has none of.
    for name in STATS_DESCRIPTIONS:
        labels[f"sglang_omni_stage_{name}"] |= {"stage", "worker"}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(queries) > 20
    for query in queries:
        names = set(re.findall(r"\bsglang_omni_\w+", query))
        assert names, query
        assert names <= labels.keys(), f"{query}: no metric {names - labels.keys()}"
        known = set.union(*(labels[name] for name in names)) | {"job", "instance"}
        used = {name for group in re.findall(r"by \(([^)]*)\)", query) for name in re.split(r"[,\s]+", group)}
        used |= {
            name for inner in re.findall(r"{([^}]*)}", query) for name in re.findall(r"(\w+)\s*[=!]", inner)
        }
        assert used <= known, f"{query}: no label {used - known}"
    legends = {
        name
        for panel in panels
        for t in panel.get("targets", ())
        for name in re.findall(r"{{(\w+)}}", t.get("legendFormat", ""))
    }
    assert legends <= set.union(*labels.values())
