"""Starts the servers of a demo, and ends them with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sglang_omni.client import ClientError, SyncClient
from sglang_omni.demo.report import DemoFailed
from sglang_omni.supervision.ports import bind

_START_TIMEOUT = 900.0
_STOP_TIMEOUT = 10.0


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
            _wait_until_up(client, server, log)
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


def _wait_until_up(client: SyncClient, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    shown = 0
    while True:
        running = client.health()["running"]
        lines = log.read_text(errors="replace").splitlines()
        for line in lines[shown:]:
            print(f"  | {line}", flush=True)
        shown = len(lines)
        if running:
            return
        if server.poll() is not None:
            raise DemoFailed(f"the server ended with status {server.returncode}")
        if time.monotonic() > deadline:
            raise DemoFailed(f"the server was not up after {_START_TIMEOUT:g} s")
        time.sleep(0.25)
