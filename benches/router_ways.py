"""The ways from the load to the workers: direct, through a TCP pass-through, through our router or a peer.

Every router runs on one core; workers and load share the other one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import RESULTS

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "build/peers/routers/bin"
LOAD = ROOT / "target/release/router-load"
# Names in the tables; the peers' versions stand in router_peers.txt.
OURS = "sglang_omni"
PEER_NAMES = ("sglang-router", "vllm-router", "smg")
# The slowest peer asks its workers many questions before it takes a request.
PATIENCE_S = 40.0

_TICK = os.sysconf("SC_CLK_TCK")


def cores() -> tuple[int, int]:
    """The router's core, and that of the workers and the load."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("the router and the load need a core each; this machine lends only one")
    return usable[0], usable[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def command_of(name: str, port: int, workers: Sequence[str], policy: str) -> list[str]:
    """How each router is started: its defaults, but for where it listens."""
    common = ["--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--worker-urls", *workers]
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    match name:
        case "sglang_omni":
            return [sys.executable, "-m", "sglang_omni.launch_router", *common]
        case "sglang-router":
            return [f"{PEERS}/python", "-m", "sglang_router.launch_router", *common, *metrics]
        case "vllm-router":
            return [f"{PEERS}/vllm-router", *common, *metrics]
        case "smg":
            return [f"{PEERS}/smg", "launch", *common, *metrics]
    raise ValueError(f"no such router: {name}")


def environment(name: str) -> dict[str, str]:
    """Ours is imported from the checkout; a PYTHONPATH would put our packages before a peer's own."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return variables | ({"PYTHONPATH": str(ROOT / "python")} if name == OURS else {})


@dataclass
class Way:
    """One way to the workers. ``process`` is what stands in it; None on the direct one."""

    name: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    # Why it could not be measured, where it could not.
    failure: str | None = None
    idle_mib: float | None = None

    def cpu_seconds(self) -> float:
        """User and system time so far, of all its processes."""
        return sum(_cpu_seconds(pid) for pid in self._pids())

    def resident_mib(self) -> float:
        return sum(_status_kib(pid, "VmRSS") for pid in self._pids()) / 1024

    def peak_mib(self) -> float:
        """The most since ``forget_peak``."""
        return sum(_status_kib(pid, "VmHWM") for pid in self._pids()) / 1024

    def forget_peak(self) -> None:
        for pid in self._pids():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def _pids(self) -> list[int]:
        if self.process is None:
            return []
        found, new = [], [self.process.pid]
        while new:
            pid = new.pop()
            found.append(pid)
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    new += [int(child) for child in (task / "children").read_text().split()]
        return found


def _cpu_seconds(pid: int) -> float:
    try:
        # The name may hold anything, a parenthesis too.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def _status_kib(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def start(command: Sequence[str], core: int, name: str, **options: Any) -> subprocess.Popen[bytes]:
    """Starts what is measured, or what it is measured with, on one core; it writes to a log of its own."""
    log = RESULTS / f"{name}.log"
    RESULTS.mkdir(exist_ok=True)
    with log.open("wb") as out:
        return subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            **options,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends it and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def workers(count: int, *mode: str) -> Iterator[list[int]]:
    """Mock workers, all of one process; yields their ports. ``mode`` is the load program's, if not worker."""
    ports = [free_port() for _ in range(count)]
    process = start([str(LOAD), *(mode or ("worker",)), *map(str, ports)], cores()[1], "workers")
    try:
        for port in ports:
            until_listening(port, process)
        yield ports
    finally:
        stop(process)


@contextlib.contextmanager
def pass_through(target: int) -> Iterator[Way]:
    port = free_port()
    process = start([str(LOAD), "pass", str(port), str(target)], cores()[0], "pass")
    try:
        until_listening(port, process)
        path = Way("pass", port, process)
        path.idle_mib = path.resident_mib()
        yield path
    finally:
        stop(process)


@contextlib.contextmanager
def router(
    name: str, worker_ports: Sequence[int], command: str | None = None, policy: str = "cache_aware"
) -> Iterator[Way]:
    """A router that has answered a request through every worker; or one with ``failure`` set.

    ``command`` starts it in place of the known command; ``--host``, ``--port`` and so on are added to it.
    """
    port = free_port()
    urls = [f"http://127.0.0.1:{worker}" for worker in worker_ports]
    words = command_of(name if command is None else OURS, port, urls, policy)
    if command is not None:
        words = [*shlex.split(command), *words[3:]]
    path = Way(name, port)
    if shutil.which(words[0]) is None:
        path.failure = f"{words[0]} is not there" + ("" if command else " (`make bench-router-peers`)")
        yield path
        return
    path.process = start(words, cores()[0], name, env=environment(name))
    try:
        path.failure = _until_answering(path)
        if path.failure is None:
            path.idle_mib = path.resident_mib()
        yield path
    finally:
        stop(path.process)


def until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until the process takes connections there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{process.args!r} does not listen on {port}") from None
            time.sleep(0.02)


def _until_answering(path: Way) -> str | None:
    """Waits for the first completion; what was in its way, where none comes."""
    body = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
    request = urllib.request.Request(
        f"http://127.0.0.1:{path.port}/v1/chat/completions", body, {"content-type": "application/json"}
    )
    assert path.process is not None
    deadline, last = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < deadline:
        if path.process.poll() is not None:
            last = f"it ended with status {path.process.returncode}"
            break
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                answer.read()
            # What it still does about its start is over soon after.
            time.sleep(1)
            return None
        except urllib.error.HTTPError as error:
            last = f"{error.code}: {error.read()[:200].decode(errors='replace')}"
        except OSError as error:
            last = str(error)
        time.sleep(0.1)
    log = RESULTS / f"{path.name}.log"
    tail = log.read_text(errors="replace").strip().splitlines()[-3:]
    return f"it never answered: {last}; its log ends: {' / '.join(tail)}"


@dataclass(frozen=True)
class Window:
    """What one stretch of load on one path came to."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_per_1000: float
    peak_mib: float


def load(path: Way, clients: int, seconds: float, kind: str, body_bytes: int) -> Window | str:
    """One window, or why there is none."""
    words = ["load", str(path.port), str(clients), str(seconds), kind, str(body_bytes)]
    path.forget_peak()
    before = path.cpu_seconds()
    ran = subprocess.run(
        ["taskset", "-c", str(cores()[1]), str(LOAD), *words],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    cpu = path.cpu_seconds() - before
    if ran.returncode:
        return ran.stderr.strip()
    seen = json.loads(ran.stdout)
    if seen["failed"] or not seen["requests"]:
        return f"{seen['failed']} of {seen['failed'] + seen['requests']} failed: {seen['failure']}"
    return Window(
        seen["rate"], seen["p50_us"], seen["p99_us"], cpu / seen["requests"] * 1000, path.peak_mib()
    )
