"""What strangers can do to a server by its sockets alone."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

HERE = Path(__file__).parent
DESCRIPTORS = 300
CONFIG = """
model_path: none
name: shouting
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: upper, process: a, factory: served_stages.upper, next: answer}}
  - {{name: answer, process: b, factory: served_stages.answer, terminal: true}}
"""
PATIENCE = 60.0


class Server:
    """A launched replica that may have few descriptors."""

    def __init__(self, folder: Path) -> None:
        config = folder / "pipeline.yaml"
        config.write_text(CONFIG.format(folder=folder))
        self.log = folder / "log"
        with self.log.open("wb") as out:
            self.process = psutil.Popen(
                [
                    *(sys.executable, "-m", "sglang_omni.launch_server", "--config", str(config)),
                    *("--port", "0", "--parent-pid", str(os.getpid())),
                ],
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
            )
        marker = "served on "
        self.wait_for(lambda: marker in self.log.read_text())
        self.url = self.log.read_text().split(marker)[1].split()[0]
        self.address = (urlsplit(self.url).hostname, urlsplit(self.url).port)

    def wait_for(self, holds) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.05)

    def ask(self) -> None:
        answer = httpx.post(f"{self.url}/v1/completions", json={"prompt": "hi"}, timeout=PATIENCE)
        assert answer.json()["choices"][0]["text"] == "HI"

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.process.send_signal(signal.SIGINT)
    try:
        server.process.wait(20)
    except psutil.TimeoutExpired:
        server.process.kill()


def open_silent(server: Server, held: ExitStack, count: int) -> list[socket.socket]:
    silent = []
    for _ in range(count):
        each = held.enter_context(socket.socket())
        each.setblocking(False)
        each.connect_ex(server.address)
        silent.append(each)
    return silent


def test_connections_without_a_byte_stop_neither_requests_nor_restarts(server: Server) -> None:
    with ExitStack() as held:
        open_silent(server, held, 2 * DESCRIPTORS)
        time.sleep(1.5)
        server.ask()
        before = server.cpu_seconds()
        time.sleep(2)
        assert server.cpu_seconds() - before < 1
        # A stage that ends finds the descriptors that its successor needs.
        pids = {process["name"]: process["pid"] for process in info(server)["processes"]}
        os.kill(pids["b"], signal.SIGKILL)
        server.wait_for(lambda: is_whole(server, pids["b"]))
        server.ask()
    assert server.log.stat().st_size < 20_000, server.log.read_text()[-4000:]
    assert "Traceback" not in server.log.read_text()


def test_a_stage_comes_back_to_a_server_without_descriptors(server: Server) -> None:
    pids = {process["name"]: process["pid"] for process in info(server)["processes"]}
    before = set(server.process.children())
    os.kill(pids["b"], signal.SIGKILL)
    server.wait_for(lambda: set(server.process.children()) - before)
    # Its successor is on its way, and connects in a moment.
    server.process.rlimit(psutil.RLIMIT_NOFILE, (3, DESCRIPTORS))
    server.wait_for(lambda: re.search(r"/abort\S* takes no connections", server.log.read_text()))
    server.process.rlimit(psutil.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    server.wait_for(lambda: is_whole(server, pids["b"]))
    server.ask()


def info(server: Server) -> dict:
    return httpx.get(f"{server.url}/get_server_info", timeout=PATIENCE).json()


def is_whole(server: Server, dead: int) -> bool:
    told = info(server)
    return not told["health"].get("down_stages") and dead not in {each["pid"] for each in told["processes"]}


def test_out_of_descriptors_is_said_now_and_then_and_over_at_once(server: Server) -> None:
    server.ask()
    used = server.process.num_fds()
    # As if something else in this process had taken the reserve.
    server.process.rlimit(psutil.RLIMIT_NOFILE, (used, used + 200))
    with ExitStack() as held:
        open_silent(server, held, 50)
        before = server.cpu_seconds()
        time.sleep(3)
        assert server.cpu_seconds() - before < 1.5
        assert server.log.stat().st_size < 20_000, server.log.read_text()[-4000:]
        assert "no connection can be taken: Too many open files" in server.log.read_text()
        server.process.rlimit(psutil.RLIMIT_NOFILE, (used + 200, used + 200))
        server.ask()
