"""The spoken chat with its models on another host than its server, started as a user starts it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from network_namespaces import Network, network, require_namespaces
from program_lines import Lines

QUESTION = {
    "model": "speech-chat",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "default", "format": "wav"},
    "temperature": 0,
    "max_tokens": 12,
}
_ASK = """
import json, sys, httpx
print(httpx.post("http://127.0.0.1:8000/v1/chat/completions", json=json.load(sys.stdin), timeout=120).text)
"""


def program(net: Network, host: str, command: list[str]) -> Lines:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    return Lines(
        net.popen(host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True)
    )


@pytest.fixture
def net() -> Iterator[Network]:
    require_namespaces()
    with network("a", "b") as made:
        yield made


def test_the_command_that_the_server_shows_brings_it_up_and_answers_are_those_of_one_host(
    net: Network, tmp_path: Path, api: httpx.Client
) -> None:
    command = ["sgl-omni", "serve", "--stage", "thinker.node=b", "--stage", "speak.node=b"]
    command += ["--join-port", "7000", "--host-address", net.address("a")]
    command += ["--join-key", str(tmp_path / "key")]
    server = program(net, "a", command)
    shown = shlex.split(server.says("sgl-omni host --coordinator"))
    host = program(net, "b", shown)
    server.says("served on")
    ask = net.popen(
        "a", [sys.executable, "-c", _ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    answer = said(json.loads(ask.communicate(json.dumps(QUESTION), timeout=240)[0]))
    assert answer == said(api.post("/v1/chat/completions", json=QUESTION).json())
    host.process.send_signal(signal.SIGINT)
    server.says("host 'b' has left: it was stopped")
    server.process.send_signal(signal.SIGINT)
    assert host.process.wait(60) == 0
    assert server.process.wait(60) == 0


def said(answer: dict[str, Any]) -> tuple[str, str]:
    message = answer["choices"][0]["message"]
    return message["content"], message["audio"]["data"]
