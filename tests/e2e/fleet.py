"""Starts a server as a user does, and checks that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from processes import is_alive

# What replicas ask for, and tell their metrics to, in place of a key that no test would know.
RUN_KEY = "known-to-tests"
START_DEADLINE = 300.0
STOP_DEADLINE = 60.0


def wait_until(holds: Callable[[], bool], deadline: float, what: str) -> float:
    """Seconds until ``holds`` did; fails the test with ``what`` where it never does."""
    began = time.monotonic()
    while time.monotonic() - began < deadline:
        if holds():
            return time.monotonic() - began
        time.sleep(0.05)
    pytest.fail(f"after {deadline:.0f} s: {what}")


def announced(process: subprocess.Popen[bytes], log: Path, line: str) -> str:
    """The URL that a server has written into its log: the first group of the pattern ``line``."""

    def said() -> bool:
        text = log.read_text(errors="replace")
        if process.poll() is not None:
            pytest.fail(f"the server exited with {process.returncode}:\n{text}")
        return re.search(line, text) is not None

    wait_until(said, START_DEADLINE, "no server")
    found = re.search(line, log.read_text(errors="replace"))
    assert found is not None
    return found[1]


def events(api: httpx.Client, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed chat."""
    with api.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        line = ""
        for line in filter(None, answer.iter_lines()):
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))
        assert line == "data: [DONE]"


@dataclass
class Fleet:
    """A launched server and everything that it started."""

    process: subprocess.Popen[bytes]
    base_url: str
    log: Path
    descendants: dict[int, psutil.Process] = field(default_factory=dict)

    @classmethod
    def launch(cls, log: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Fleet:
        """
        Args:
            env: Variables beside this process's own.
        """
        command = [sys.executable, "-m", "sglang_omni.launch_server", "--port", "0", *arguments]
        # Tests that are killed leave no server behind.
        command += ["--parent-pid", str(os.getpid())]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        try:
            # The launcher's own word, not a replica's: its members are all there.
            fleet = cls(process, announced(process, log, r"\[server\].* served on (\S+)\n"), log)
        except BaseException:
            # It may have ended by itself.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            print(log.read_text(errors="replace"))
            raise
        fleet.remember_descendants()
        return fleet

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            pytest.fail(f"the server exited with {self.process.returncode}:\n{self.tail()}")
        try:
            return httpx.get(f"{self.base_url}/health", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def remember_descendants(self) -> None:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self.descendants[child.pid] = child

    def survivors(self) -> list[psutil.Process]:
        return [process for process in self.descendants.values() if is_alive(process)]

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends the server as a user does, unless a test has; insists that nothing of it stays."""
        if self.process.poll() is None:
            self.remember_descendants()
            self.process.send_signal(how)
        self.process.wait(timeout=STOP_DEADLINE)
        wait_until(lambda: not self.survivors(), STOP_DEADLINE, f"orphans: {self.survivors()}")
