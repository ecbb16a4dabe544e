"""Routes for operators and routers."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

from waiting import PATIENCE

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}


def test_health_follows_the_pipeline(http, pipeline):
    assert http.get("/health").json() == {"status": "healthy", "running": True}
    pipeline.up = False
    answer = http.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "unhealthy")


def test_health_generate_runs_a_request(http, pipeline):
    assert http.get("/health_generate").status_code == 200
    assert pipeline.last.params["max_new_tokens"] == 1
    pipeline.error = RuntimeError("stage 'thinker': broken")
    assert http.get("/health_generate").status_code == 500


def test_health_generate_is_one_request_for_all_who_ask(http, pipeline):
    pipeline.hangs_after = 0
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(http.get, "/health_generate") for _ in range(8)]
        deadline = time.monotonic() + PATIENCE
        while http.get("/metrics").text.count("requests_in_flight 9") == 0:
            assert time.monotonic() < deadline
        assert len(pipeline.running) == 1
        [probe] = pipeline.running
        http.post("/abort_request", json={"request_id": probe})
        assert len({each.result().status_code for each in asking}) == 1


def test_model_and_server_info(http):
    info = http.get("/get_model_info").json()
    assert info == http.get("/model_info").json()
    assert info["voices"] == ["default"]
    assert info["input_modalities"] == ["audio", "text"]
    assert info["random_weights"] is False
    server = http.get("/get_server_info").json()
    assert server["served_model_name"] == "scripted"
    assert server["health"] == {"running": True}


def test_load(http):
    load = http.get("/get_load").json()
    assert (load["running"], load["num_reqs"], load["completed"]) == (0, 0, 5)


def test_native_generate(http, pipeline):
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 3, "temperature": 0}, "rid": "r1"}
    answer = http.post("/generate", json=body).json()
    assert answer["text"] == "Hello."
    assert answer["output_ids"] == [1, 2, 3]
    assert answer["meta_info"] == {
        "id": "r1",
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cached_tokens": 4,
    }
    assert pipeline.last.params == {"max_new_tokens": 3, "temperature": 0, "stream": False}
    streamed = http.post("/generate", json={"input_ids": [1], "stream": True}).text
    assert re.findall(r'"text":"([^"]*)"', streamed) == ["Hel", "Hello", "Hello.", "Hello."]


def test_metrics_count_requests_and_tokens(http):
    def value(pattern: str) -> float:
        found = re.search(rf"^sglang_omni_{pattern} (\S+)$", http.get("/metrics").text, re.M)
        return float(found[1]) if found else 0.0

    ok = r'requests_total{path="/v1/chat/completions",status="200"}'
    bad = r'requests_total{path="/v1/chat/completions",status="400"}'
    tokens = r'tokens_total{kind="completion"}'
    before = [value(p) for p in (ok, bad, tokens)]
    http.post("/v1/chat/completions", json=HELLO)
    http.post("/v1/chat/completions", json=HELLO | {"stream": True})
    http.post("/v1/chat/completions", json={})
    assert [value(p) for p in (ok, bad, tokens)] == [before[0] + 2, before[1] + 1, before[2] + 6]
    assert value(r'pipeline_requests{state="completed"}') == 5
    assert value("requests_in_flight") == 1
    assert value("first_output_seconds_count") >= 1


def test_timings_on_request(http):
    body = HELLO | {"timings": True}
    timings = {"thinker": {"work": 0.25, "wait": 0.5}}
    assert http.post("/v1/chat/completions", json=body).json()["timings"] == timings
    streamed = http.post("/v1/chat/completions", json=body | {"stream": True}).text
    assert '"timings":{"thinker":{"work":0.25,"wait":0.5}}' in streamed
    assert "timings" not in http.post("/v1/chat/completions", json=HELLO).json()


def test_unknown_route_and_method(http):
    missing = http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
    assert http.get("/v1/chat/completions").status_code == 405


def test_page_needs_nothing_from_elsewhere(http):
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    parts = re.findall(r'(?:src|href)\s*=\s*["\']?([^"\'> ]+)', page.text)
    kinds = {part: http.get(f"/{part}").headers["content-type"] for part in parts if part != "data:,"}
    assert kinds["page/css/base.css"].startswith("text/css")
    assert kinds["page/js/main.js"].startswith("text/javascript")
    assert http.get("/page/nothing.js").status_code == 404
    assert http.get("/page/../api/page.py").status_code == 404


def test_flush_cache_reaches_the_pipeline(http, pipeline):
    assert http.post("/flush_cache").status_code == 404
    flushed: list[bool] = []

    async def flush_cache() -> None:
        flushed.append(True)

    pipeline.flush_cache = flush_cache
    assert http.post("/flush_cache").status_code == 200
    assert flushed == [True]
