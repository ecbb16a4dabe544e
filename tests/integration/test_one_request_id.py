"""A request's one id, through a router and a server as users start them: each in processes of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

HERE = Path(__file__).parent
CONFIG = """
model_path: none
name: words
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: say, process: say, factory: served_stages.Speaker, terminal: true}}
"""
# Bounds the wait for what must happen.
PATIENCE = 60.0


@dataclass
class Fleet:
    """A server, a router before it, and what each has logged."""

    router_url: str
    server_url: str
    router_log: Path
    server_log: Path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    config = folder / "words.yaml"
    config.write_text(CONFIG.format(folder=folder))
    server_log, router_log = folder / "server.log", folder / "router.log"
    with contextlib.ExitStack() as stack:
        start = ("launch_server", "--config", str(config), "--parent-pid", str(os.getpid()))
        stack.enter_context(launched(server_log, *start))
        server_url = logged(server_log, "served on ")
        workers = ("--worker-urls", server_url, "--access-log")
        stack.enter_context(launched(router_log, "launch_router", *workers))
        yield Fleet(logged(router_log, "listening on "), server_url, router_log, server_log)


@contextlib.contextmanager
def launched(log: Path, module: str, *flags: str) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", f"sglang_omni.{module}", "--port", "0", *flags],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def logged(log: Path, marker: str) -> str:
    """The word after the marker, once it is in the log."""
    wait_for(lambda: marker in log.read_text(), f"no {marker!r} in the log", log)
    return log.read_text().split(marker)[1].split()[0]


def wait_for(holds: Callable[[], bool], otherwise: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"{otherwise}:\n{log.read_text()}"
        time.sleep(0.02)


def lines_of(log: Path, request_id: str) -> list[str]:
    return [line for line in log.read_text().splitlines() if request_id in line]


@pytest.mark.parametrize("way", ["router", "server"])
@pytest.mark.parametrize("form", ["bare", "answer's"])
def test_openais_request_id_aborts_its_stream_and_finds_the_logs(fleet: Fleet, way: str, form: str) -> None:
    with openai.OpenAI(base_url=f"{fleet.router_url}/v1", api_key="none", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="words", messages=[{"role": "user", "content": "a b HANG"}], stream=True
        )
        shown, chunks = raw.request_id, iter(raw.parse())
        assert shown is not None
        first = next(chunks)
        assert first.id == f"chatcmpl-{shown}"

        named = shown if form == "bare" else first.id
        url = fleet.router_url if way == "router" else fleet.server_url
        answer = httpx.post(f"{url}/abort_request", json={"request_id": named}, timeout=PATIENCE)
        assert answer.json()["success"] is True
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "abort"
    for log, words in ((fleet.server_log, "is aborted"), (fleet.router_log, f"id={shown} ")):
        wait_for(lambda: any(words in line for line in lines_of(log, shown)), "no line", log)  # noqa: B023


def test_a_whole_answers_request_id_is_its_id(fleet: Fleet) -> None:
    with openai.OpenAI(base_url=f"{fleet.router_url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="words",
            messages=[{"role": "user", "content": "a b"}],
            extra_headers={"X-Request-ID": "mine"},
        )
        assert (answer._request_id, answer.id) == ("mine", "chatcmpl-mine")
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="nothing", messages=[{"role": "user", "content": "a"}])
    refused = caught.value.request_id
    assert refused is not None
    wait_for(lambda: bool(lines_of(fleet.server_log, refused)), "no line", fleet.server_log)
    assert "was answered with 404" in lines_of(fleet.server_log, refused)[0]


def test_a_stages_failure_is_logged_by_stage_server_and_router_under_one_id(fleet: Fleet) -> None:
    body = {"messages": [{"role": "user", "content": "FAIL HANG"}]}
    url = f"{fleet.router_url}/v1/chat/completions"
    answer = httpx.post(url, json=body, timeout=PATIENCE)
    shown = answer.headers["x-request-id"]
    assert answer.status_code == 500
    wait_for(lambda: len(lines_of(fleet.server_log, shown)) >= 2, "no lines", fleet.server_log)
    lines = lines_of(fleet.server_log, shown)
    assert any(f"Stage say: request {shown} failed" in line for line in lines)
    assert any(f"Request {shown} failed: stage 'say'" in line for line in lines)
    wait_for(lambda: bool(lines_of(fleet.router_log, shown)), "no line", fleet.router_log)


def test_an_id_of_the_body_is_the_routers_too(fleet: Fleet) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "request_id": "chosen"}
    answer = httpx.post(f"{fleet.router_url}/v1/chat/completions", json=body, timeout=PATIENCE)
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("chosen", "chatcmpl-chosen")
    wait_for(lambda: bool(lines_of(fleet.router_log, "id=chosen ")), "no line", fleet.router_log)
