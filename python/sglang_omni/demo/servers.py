"""Starts the servers of a demo, and ends them with it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

from sglang_omni.client import ClientError, SyncClient
from sglang_omni.demo.report import DemoFailed, show
from sglang_omni.supervision.ports import bind

_START_TIMEOUT = 900.0
_STOP_TIMEOUT = 10.0
_POLL_S = 0.25
# A line of the server's log, or of the router's, and its level.
_BEGINS = re.compile(r"\d{4}-\d\d-\d\d[ T]\S+\s+([A-Z]+)\b")
_WARNINGS = frozenset({"WARN", "WARNING", "ERROR", "CRITICAL"})


@contextlib.contextmanager
def servers(port: int, flags: Sequence[str], *, replicas: int) -> Iterator[str]:
    """Runs server replicas, several of them behind a router, for the block; yields their base URL."""
    # Bound until the end, which reserves the port for the servers: they take long to start.
    with bind("127.0.0.1", port) as held, _server(held.getsockname()[1], flags, replicas) as base_url:
        yield base_url


@contextlib.contextmanager
def _server(port: int, flags: Sequence[str], replicas: int) -> Iterator[str]:
    base_url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "sglang_omni.launch_server", "--dp-size", str(replicas)),
        *("--port", str(port), "--parent-pid", str(os.getpid())),
        *("--start-timeout", str(_START_TIMEOUT), *flags),
    ]
    # The client comes before the server: a signal while it makes its event loop leaves a broken one,
    # whose end Python tells with a traceback.
    with (
        tempfile.TemporaryDirectory(prefix="sglang-omni-demo-") as scratch,
        SyncClient(base_url) as client,
    ):
        log = Path(scratch) / "log"
        with log.open("wb") as out:
            # In its own session: Ctrl-C must end the demo only, which then ends the servers and waits for
            # them.
            server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            shown = _wait_until_up(client, server, log)
            show("log", str(log))
            with _telling_warnings(log, shown):
                yield base_url
        except (DemoFailed, ClientError):
            print(log.read_text(errors="replace"), file=sys.stderr)
            raise
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait_until_up(client: SyncClient, server: subprocess.Popen[bytes], log: Path) -> int:
    """Shows the log until the server is up; returns how many lines it showed."""
    deadline = time.monotonic() + _START_TIMEOUT
    shown = 0
    while True:
        running = client.health()["running"]
        lines = log.read_text(errors="replace").splitlines()
        for line in lines[shown:]:
            print(f"  | {line}", flush=True)
        shown = len(lines)
        if running:
            return shown
        if server.poll() is not None:
            raise DemoFailed(f"the server ended with status {server.returncode}")
        if time.monotonic() > deadline:
            raise DemoFailed(f"the server was not up after {_START_TIMEOUT:g} s")
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _telling_warnings(log: Path, shown: int) -> Iterator[None]:
    """Shows the warnings and errors that come into a log after so many lines, for the block."""
    over = threading.Event()

    def follow() -> None:
        with log.open(errors="replace") as file:
            lines = islice(_lines(file, over), shown, None)
            for line in warnings_of(lines):
                print(f"  | {line}", flush=True)

    following = threading.Thread(target=follow, name="log")
    following.start()
    try:
        yield
    finally:
        over.set()
        following.join()


def _lines(file: TextIO, over: threading.Event) -> Iterator[str]:
    """The lines of a file that grows, until ``over`` is set."""
    begun = ""
    while True:
        begun += (piece := file.readline())
        if begun.endswith("\n"):
            yield begun.rstrip("\n")
            begun = ""
        elif not piece and over.wait(_POLL_S):
            return


def warnings_of(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a log that are warnings or worse, with the lines that belong to them, as tracebacks."""
    is_warning = False
    for line in lines:
        if (begins := _BEGINS.match(line)) is not None:
            is_warning = begins[1] in _WARNINGS
        if is_warning:
            yield line
