"""Clients that take their answers slowly keep nobody else out."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from own_pipelines import served

PLACES = 4
MEGABYTES = 20
CONFIG = """
model_path: none
name: flood
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: flood, process: a, factory: served_stages.Flood, terminal: true}}
"""
# Shorter than the time for which a server keeps a connection whose client takes nothing.
PATIENCE = 40.0


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    config = tmp_path / "pipeline.yaml"
    config.write_text(CONFIG.format(folder=tmp_path))
    places = ("--max-concurrent-requests", str(PLACES), "--queue-size", "0")
    with served(tmp_path, "--config", str(config), *places, import_from=(Path(__file__).parent,)) as url:
        yield url


def begin(url: str, prompt: str = str(MEGABYTES), *, receive_buffer: int | None = None) -> socket.socket:
    """Ask for a long stream, and take nothing of it."""
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(PATIENCE)
    client.connect((urlsplit(url).hostname, urlsplit(url).port))
    body = json.dumps({"prompt": prompt, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
    kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    client.sendall((head + kind).encode() + body)
    return client


def test_others_are_served_while_streams_wait_for_their_clients(url: str) -> None:
    with ExitStack() as held:
        slow = [held.enter_context(begin(url)) for _ in range(PLACES)]
        for each in slow:
            assert each.recv(12) == b"HTTP/1.1 200"
        deadline = time.monotonic() + PATIENCE
        statuses = set()
        while 200 not in statuses:
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "1"}, timeout=PATIENCE)
            statuses.add(answer.status_code)
            assert time.monotonic() < deadline, statuses
            time.sleep(0.1)
        # Nothing is lost of the slow ones' answers.
        for each in slow:
            came = b"".join(iter(lambda: each.recv(2**20), b""))  # noqa: B023
            assert came.count(b"x") >= MEGABYTES * 1_000_000
            assert b"data: [DONE]" in came


STREAMS, TOKENS = 64, 300


def test_slow_readers_beside_fast_ones_lose_no_token_and_hold_up_none(tmp_path: Path) -> None:
    """All run in the same steps of one stage. The slow ones read once the fast ones have everything."""
    config = tmp_path / "pipeline.yaml"
    stage = "{name: step, process: step, factory: served_stages.Steps, terminal: true}"
    config.write_text(
        f"model_path: none\nname: steps\nendpoints: {{base_path: {tmp_path}/run}}\nstages:\n  - {stage}\n"
    )
    places = ("--max-concurrent-requests", str(2 * STREAMS))
    arguments = ("--config", str(config), *places)
    with (
        served(tmp_path, *arguments, import_from=(Path(__file__).parent,)) as url,
        ExitStack() as held,
    ):
        slow = [held.enter_context(begin(url, str(TOKENS), receive_buffer=4096)) for _ in range(STREAMS)]
        fast = [held.enter_context(begin(url, str(TOKENS))) for _ in range(STREAMS)]
        for each in [*fast, *slow]:
            came = b"".join(iter(lambda: each.recv(2**20), b""))  # noqa: B023
            events = [json.loads(event) for event in re.findall(rb"data: (\{.*\})\n\n", came)]
            text = "".join(choice["text"] for event in events for choice in event["choices"])
            assert text == "".join(f" {number}" for number in range(TOKENS))
            assert came.count(b"data: [DONE]") == 1
