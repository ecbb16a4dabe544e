"""A fleet's keys: replicas take requests of their router alone, and no command line tells a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from processes import command_line
from served_process import ServedProcess
from shouting_server import shouting
from waiting import PATIENCE

CLIENTS_KEY = "the-clients-key"
PROMPT = {"prompt": "hi"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedProcess]:
    monkeypatch.setenv("SGLANG_OMNI_API_KEY", CLIENTS_KEY)
    with shouting(tmp_path, "--dp-size", "2", "--policy", "round_robin") as launched:
        yield launched


def test_replicas_take_what_their_router_sends_alone(fleet: ServedProcess) -> None:
    url = fleet.base_url
    completions = f"{url}/v1/completions"
    assert httpx.post(completions, json=PROMPT, timeout=PATIENCE).status_code == 401
    for _ in range(4):  # both of them
        answer = httpx.post(completions, json=PROMPT, headers=bearer(CLIENTS_KEY), timeout=PATIENCE)
        assert answer.json()["choices"][0]["text"] == "HI"

    replicas, (router,) = fleet.children("launch_server"), fleet.children("router_process")
    assert len(replicas) == 2
    (run_key,) = {replica.environ()["SGLANG_OMNI_API_KEY"] for replica in replicas}
    for replica in replicas:
        arguments = replica.cmdline()
        own = f"http://127.0.0.1:{arguments[arguments.index('--port') + 1]}"
        assert httpx.get(f"{own}/health", timeout=PATIENCE).status_code == 200
        for headers in ({}, bearer(CLIENTS_KEY)):
            for method, path in (
                ("POST", "/v1/completions"),
                ("POST", "/abort_request"),
                ("POST", "/flush_cache"),
                ("GET", "/v1/models"),
                ("GET", "/metrics"),
                ("GET", "/get_server_info"),
            ):
                answer = httpx.request(method, own + path, headers=headers, timeout=PATIENCE)
                assert (answer.status_code, path) == (401, path)
        # What its router may do, administration included.
        assert httpx.post(f"{own}/flush_cache", headers=bearer(run_key), timeout=PATIENCE).status_code == 200

    whole = psutil.Process(fleet.process.pid)
    processes = [whole, *whole.children(recursive=True)]
    assert len(processes) >= 8
    for line in map(command_line, processes):
        assert run_key not in line
        assert CLIENTS_KEY not in line
    stages = [child for replica in replicas for child in replica.children(recursive=True)]
    assert len(stages) >= 4
    for stage in stages:
        held = "\0".join(stage.environ().values())
        assert run_key not in held
        assert CLIENTS_KEY not in held
    assert CLIENTS_KEY not in "".join(value for each in replicas for value in each.environ().values())
    # Other users cannot read the router's config there.
    assert Path(f"/proc/{router.pid}/environ").stat().st_mode & 0o077 == 0
    assert run_key not in fleet.log.read_text()
