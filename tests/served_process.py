"""Starts servers and routers as users do, each in a process of its own, and sees what they leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
from processes import command_line, is_alive
from waiting import PATIENCE, wait_until

# The launcher's own line: of a fleet, its replicas are served before that.
_SERVES = {"launch_router": r"listening on ([^\s\"]+)", "": r"\[server\].* served on (\S+)\n"}


def importing(*folders: Path) -> dict[str, str]:
    """The tests' environment, for a server whose stages are in ``folders`` and import what tests do."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, folders), *sys.path])}


class ServedProcess:
    """``sglang_omni.launch_server ARGUMENTS``, and every process that was ever seen below it.

    Args:
        log: Where its output goes.
        module: ``launch_router`` starts a router instead.
        program: What is run, in place of that module.
        env: Its whole environment (default: this process's own).
        options: Of ``Popen``.
    """

    def __init__(
        self,
        log: Path,
        *arguments: str,
        module: str = "launch_server",
        program: tuple[str, ...] | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.log = log
        self._serves = _SERVES.get(module, _SERVES[""])
        command = [*(program or (sys.executable, "-m", f"sglang_omni.{module}")), "--port", "0", *arguments]
        if module != "launch_router":
            # Tests that are killed leave no server behind.
            command += ["--parent-pid", str(os.getpid())]
        with log.open("wb") as out:
            self.process = psutil.Popen(
                command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options
            )
        self.descendants: dict[int, psutil.Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Kills it, and all that was seen below it, where the test has not ended it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for process in self.survivors():
            process.kill()

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def base_url(self) -> str:
        """Where it serves, once it does. Raises AssertionError if it ends before."""
        self.wait_for(lambda: re.search(self._serves, self.text), "it does not serve")
        (url,) = re.findall(self._serves, self.text)[:1]
        return str(url)

    def wait_for(self, holds: Callable[[], Any], otherwise: str) -> None:
        """``wait_until``, while it runs."""

        def decided() -> bool:
            ended = self.process.poll() is not None
            if holds():
                return True
            assert not ended, f"it ended with {self.process.returncode}:\n{self.text}"
            return False

        wait_until(decided, lambda: f"{otherwise}:\n{self.text}")

    def lines(self, part: str) -> str:
        """The lines of its log with ``part`` in them."""
        return "\n".join(line for line in self.text.splitlines() if part in line)

    def children(self, mark: str = "") -> list[psutil.Process]:
        """Its own children with ``mark`` on their command line; all below it are remembered."""
        self.descendants |= {each.pid: each for each in self.process.children(recursive=True)}
        return [child for child in self.process.children() if mark in command_line(child)]

    def survivors(self) -> list[psutil.Process]:
        return [process for process in self.descendants.values() if is_alive(process)]

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not self.survivors(), lambda: f"left: {self.survivors()}\n{self.text}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends the server as a user does, unless a test has; insists that nothing of it stays."""
        if self.process.poll() is None:
            self.children()
            self.process.send_signal(how)
        self.process.wait(PATIENCE)
        self.assert_nothing_left()


@contextmanager
def served_process(log: Path, *arguments: str, **options: Any) -> Iterator[ServedProcess]:
    """A ``ServedProcess`` that serves; at the end, it stops as a user stops it."""
    with ServedProcess(log, *arguments, **options) as server:
        try:
            assert server.base_url
            server.children()
            yield server
        except BaseException:
            print(server.text)
            raise
        server.stop()
