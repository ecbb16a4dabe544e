"""What strangers can do to a server by its sockets alone."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from processes import is_mostly_asleep
from served_process import ServedProcess
from shouting_server import shout, shouting
from waiting import PATIENCE

DESCRIPTORS = 300


def ask(server: ServedProcess) -> None:
    assert shout(server.base_url).json()["choices"][0]["text"] == "HI"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedProcess]:
    """A replica that may have few descriptors."""
    limit = (DESCRIPTORS, DESCRIPTORS)
    few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit)}
    with shouting(tmp_path, **few) as server:
        assert server.base_url
        yield server
        server.stop()


def open_silent(server: ServedProcess, held: ExitStack, count: int) -> list[socket.socket]:
    url = urlsplit(server.base_url)
    silent = []
    for _ in range(count):
        each = held.enter_context(socket.socket())
        each.setblocking(False)
        each.connect_ex((url.hostname, url.port))
        silent.append(each)
    return silent


def test_connections_without_a_byte_stop_neither_requests_nor_restarts(server: ServedProcess) -> None:
    with ExitStack() as held:
        open_silent(server, held, 2 * DESCRIPTORS)
        server.wait_for(lambda: "there is room for no more" in server.text, "all connections are taken")
        ask(server)
        assert is_mostly_asleep(server.process.pid)
        # A stage that ends finds the descriptors that its successor needs.
        pids = {process["name"]: process["pid"] for process in info(server)["processes"]}
        os.kill(pids["b"], signal.SIGKILL)
        server.wait_for(lambda: is_whole(server, pids["b"]), "the stage does not come back")
        ask(server)
    assert server.log.stat().st_size < 20_000, server.text[-4000:]
    assert "Traceback" not in server.text


def test_a_stage_comes_back_to_a_server_without_descriptors(server: ServedProcess) -> None:
    pids = {process["name"]: process["pid"] for process in info(server)["processes"]}
    before = set(server.process.children())
    os.kill(pids["b"], signal.SIGKILL)

    def is_on_its_way() -> bool:
        return any(new.cpu_times().user > 0.05 for new in set(server.process.children()) - before)

    # Its successor imports what it needs, and connects in a moment.
    server.wait_for(is_on_its_way, "no successor is started")
    server.process.rlimit(psutil.RLIMIT_NOFILE, (3, DESCRIPTORS))
    server.wait_for(lambda: re.search(r"/abort\S* takes no connections", server.text), "it connects")
    server.process.rlimit(psutil.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    server.wait_for(lambda: is_whole(server, pids["b"]), "the stage does not come back")
    ask(server)


def info(server: ServedProcess) -> dict:
    return httpx.get(f"{server.base_url}/get_server_info", timeout=PATIENCE).json()


def is_whole(server: ServedProcess, dead: int) -> bool:
    reported = info(server)
    return not reported["health"].get("down_stages") and dead not in {
        each["pid"] for each in reported["processes"]
    }


def test_out_of_descriptors_is_said_now_and_then_and_over_at_once(server: ServedProcess) -> None:
    ask(server)
    used = server.process.num_fds()
    # As if something else in this process had taken the reserve.
    server.process.rlimit(psutil.RLIMIT_NOFILE, (used, used + 200))
    with ExitStack() as held:
        open_silent(server, held, 50)
        shortage = "no connection can be taken: Too many open files"
        server.wait_for(lambda: shortage in server.text, "the shortage is not reported")
        assert is_mostly_asleep(server.process.pid)
        assert server.log.stat().st_size < 20_000, server.text[-4000:]
        server.process.rlimit(psutil.RLIMIT_NOFILE, (used + 200, used + 200))
        ask(server)
