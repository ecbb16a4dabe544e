"""Writes ``deploy/grafana/sglang-omni.json``, the dashboard of servers and routers, from its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "sglang-omni.json"

# A panel's title, unit, and queries by their legend. METRIC{...} gets the dashboard's job, RATE its interval.
Panel = tuple[str, str, dict[str, str]]


def quantiles(metric: str, by: str = "") -> dict[str, str]:
    """The median and the slow end of a histogram."""
    labels, legend = ("le, " + by, " {{" + by + "}}") if by else ("le", "")
    rate = f"sum by ({labels}) (rate({metric}_bucket{{}}[RATE]))"
    shares = (95,) if by else (50, 95, 99)
    return {f"p{share}{legend}": f"histogram_quantile({share / 100}, {rate})" for share in shares}


def per_second(metric: str, by: str = "", labels: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{labels}}}[RATE]))"


WORK = 'path=~"/v1/.+|/generate"'
ROWS: dict[str, list[Panel]] = {
    "Requests": [
        (
            "Servers up",
            "none",
            {"up": "sum(sglang_omni_up{})", "stages down": "sum(sglang_omni_stages_down{})"},
        ),
        ("Answers", "reqps", {"{{status}}": per_second("sglang_omni_requests_total", "status", WORK)}),
        (
            "In the pipeline, and waiting",
            "none",
            {
                "running": "sum(sglang_omni_num_requests_running{})",
                "waiting": "sum(sglang_omni_num_requests_waiting{})",
            },
        ),
        (
            "Results by how they ended",
            "reqps",
            {"{{finished_reason}}": per_second("sglang_omni_request_success_total", "finished_reason")},
        ),
        (
            "Refused with 429",
            "reqps",
            {"{{reason}}": per_second("sglang_omni_requests_refused_total", "reason")},
        ),
        ("Time in the queue", "s", quantiles("sglang_omni_request_queue_time_seconds")),
    ],
    "What callers notice": [
        ("Time to first text", "s", quantiles("sglang_omni_time_to_first_token_seconds")),
        ("Between tokens", "s", quantiles("sglang_omni_inter_token_latency_seconds")),
        ("Whole request", "s", quantiles("sglang_omni_e2e_request_latency_seconds")),
    ],
    "What listeners hear": [
        ("Time to first sound", "s", quantiles("sglang_omni_time_to_first_audio_seconds")),
        ("Silence in a listener's sound", "s", quantiles("sglang_omni_audio_underrun_seconds")),
        ("Seconds for a second of sound", "none", quantiles("sglang_omni_audio_real_time_factor")),
        ("Realtime sessions", "none", {"open": "sum(sglang_omni_realtime_sessions{})"}),
    ],
    "Tokens": [
        (
            "Tokens a second",
            "none",
            {
                "prompt": per_second("sglang_omni_prompt_tokens_total"),
                "generated": per_second("sglang_omni_generation_tokens_total"),
            },
        ),
        (
            "Prompt tokens found in the cache",
            "percentunit",
            {
                "cached": per_second("sglang_omni_cached_tokens_total")
                + " / "
                + per_second("sglang_omni_prompt_tokens_total")
            },
        ),
    ],
    "Stages": [
        ("Requests in a stage", "none", {"{{stage}}": "sum by (stage) (sglang_omni_stage_requests{})"}),
        (
            "Requests that wait in a stage",
            "none",
            {"{{stage}}": "sum by (stage) (sglang_omni_stage_num_queue_reqs{})"},
        ),
        (
            "Work on a request",
            "s",
            {
                "{{stage}}": per_second("sglang_omni_stage_work_seconds_total", "stage")
                + " / "
                + per_second("sglang_omni_stage_visits_total", "stage")
            },
        ),
        (
            "Wait of a request",
            "s",
            {
                "{{stage}}": per_second("sglang_omni_stage_wait_seconds_total", "stage")
                + " / "
                + per_second("sglang_omni_stage_visits_total", "stage")
            },
        ),
        (
            "Key-value cache that requests hold",
            "percentunit",
            {
                "{{stage}}": "sum by (stage) (sglang_omni_stage_kv_used_tokens{}) / "
                "sum by (stage) (sglang_omni_stage_max_total_num_tokens{})"
            },
        ),
        ("Steps", "ops", {"{{stage}}": per_second("sglang_omni_stage_num_steps_total", "stage")}),
        (
            "Retracted requests",
            "reqps",
            {"{{stage}}": per_second("sglang_omni_stage_num_retracted_requests_total", "stage")},
        ),
        (
            "Payloads under way",
            "bytes",
            {"{{stage}}": "sum by (stage) (sglang_omni_stage_relay_held_bytes{})"},
        ),
        (
            "Payloads that waited for room",
            "ops",
            {"{{stage}}": per_second("sglang_omni_stage_relay_waits_total", "stage")},
        ),
    ],
    "Router": [
        ("Workers up", "none", {"worker {{worker}}": "sum by (worker) (sglang_omni_router_worker_up{})"}),
        (
            "In flight at workers",
            "none",
            {"worker {{worker}}": "sum by (worker) (sglang_omni_router_worker_inflight{})"},
        ),
        ("Answers", "reqps", {"{{status}}": per_second("sglang_omni_router_requests_total", "status")}),
        ("First byte", "s", quantiles("sglang_omni_router_worker_time_to_first_byte_seconds", "worker")),
        (
            "Tried again, and not served",
            "reqps",
            {
                "retries": per_second("sglang_omni_router_retries_total"),
                "unserved": per_second("sglang_omni_router_unserved_total"),
            },
        ),
        (
            "Failures of workers",
            "reqps",
            {"worker {{worker}}": per_second("sglang_omni_router_worker_failures_total", "worker")},
        ),
        (
            "How answers ended",
            "reqps",
            {"{{how}}": per_second("sglang_omni_router_requests_ended_total", "how")},
        ),
        (
            "Prompt tokens found in workers' caches",
            "percentunit",
            {
                "cached": per_second("sglang_omni_router_cached_tokens_total")
                + " / "
                + per_second("sglang_omni_router_prompt_tokens_total")
            },
        ),
    ],
}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 7


def expression(query: str) -> str:
    """The query with the job that the dashboard shows, and its interval."""
    query = query.replace("{}", '{job=~"$job"}').replace("[RATE]", "[$__rate_interval]")
    return query.replace("{path", '{job=~"$job", path')


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row, of_row in ROWS.items():
        panels.append(
            {
                "type": "row",
                "id": len(panels) + 1,
                "title": row,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
            }
        )
        y += 1
        for index, (title, unit, queries) in enumerate(of_row):
            x = WIDTH * (index % 3)
            if index and not x:
                y += HEIGHT
            panels.append(
                {
                    "type": "timeseries",
                    "id": len(panels) + 1,
                    "title": title,
                    "datasource": SOURCE,
                    "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list"}},
                    "targets": [
                        {
                            "refId": chr(ord("A") + number),
                            "datasource": SOURCE,
                            "expr": expression(query),
                            "legendFormat": legend,
                        }
                        for number, (legend, query) in enumerate(queries.items())
                    ],
                }
            )
        y += HEIGHT
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "job",
            "label": "Job",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": 'label_values({__name__=~"sglang_omni_up|sglang_omni_router_workers"}, job)'},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "title": "sglang-omni",
        "uid": "sglang-omni",
        "tags": ["sglang-omni"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text())
