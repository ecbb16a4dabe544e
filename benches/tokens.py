"""``make bench-tokens``: what a streamed token costs in the API's processes and in its stage's event loop.

``launch_server`` serves a pipeline of one stage, in a process of its own, whose scheduler gives every running
request a token a step, at a fixed pace. The client reads bytes and parses none of them. CPU time is that of
the threads, from the kernel, so that a busy machine changes it less than a time on the clock.

python benches/tokens.py [--streams 1 64] [--api-workers 1 2] [--python OLD/bin/python NEW/bin/python]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from measure import conditions, progress

_CONFIG = """
model_path: none
name: tokens
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: step, process: step, factory: paced_tokens.PacedTokens, terminal: true,
     factory_args: {{tokens: {tokens}, step_s: {step_s}}}}}
"""
_PATIENCE_S = 120.0
_EVENT = b"data: {"


class Figures(NamedTuple):
    """Of one window.

    Attributes:
        main_us: CPU of the main process a token, in microseconds.
        workers_us: Of all API workers together.
        loop_us: Of the thread of the stage's event loop.
        events: Server-sent events a token.
        tokens_per_s: Tokens a second of the clock.
    """

    main_us: float
    workers_us: float
    loop_us: float
    events: float
    tokens_per_s: float


def cpu_s(pid: int, thread: int | None = None) -> float:
    """Seconds of CPU so far, of one thread or of all of a process."""
    tasks = Path(f"/proc/{pid}/task")
    threads = [str(thread)] if thread is not None else os.listdir(tasks)
    return sum(int((tasks / each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


class Server:
    """``launch_server`` on a free port, with the one stage; end it with ``close``."""

    def __init__(
        self, folder: str, tokens: int, step_s: float, python: str = sys.executable, workers: int = 1
    ) -> None:
        config = Path(folder) / "tokens.yaml"
        config.write_text(_CONFIG.format(folder=folder, tokens=tokens, step_s=step_s))
        here = str(Path(__file__).parent)
        log = Path(folder) / "log"
        command = [python, "-m", "sglang_omni.launch_server", "--config", str(config), "--port", "0"]
        if workers > 1:  # an older version, to compare with, does not know the flag
            command += ["--api-workers", str(workers)]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    *command,
                    "--served-model-name",
                    "m",
                    "--max-concurrent-requests",
                    "256",
                    "--parent-pid",
                    str(os.getpid()),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": here},
                start_new_session=True,
            )
        self.port = self._until_served(log)
        (self.stage,) = self._children(b"processes.child")
        self.workers = self._children(b"api_worker")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()

    def _until_served(self, log: Path) -> int:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            served = [line for line in log.read_text().splitlines() if " served on http" in line]
            if served:
                return int(served[0].rpartition(":")[2].rstrip("/ "))
            time.sleep(0.2)
        raise SystemExit(f"the server did not start:\n{log.read_text()}")

    def _children(self, mark: bytes) -> list[int]:
        """Those with ``mark`` on their command line."""
        own = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [
            int(pid) for pid in own.read_text().split() if mark in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def window(self, streams: int, tokens: int) -> Figures:
        """One answer to each of ``streams`` clients at once."""
        main, workers, loop = self._cpu()
        began = time.perf_counter()
        events = read_all(self.port, streams)
        took = time.perf_counter() - began
        total = streams * tokens
        main_after, workers_after, loop_after = self._cpu()
        return Figures(
            (main_after - main) / total * 1e6,
            (workers_after - workers) / total * 1e6,
            (loop_after - loop) / total * 1e6,
            events / total,
            total / took,
        )

    def _cpu(self) -> tuple[float, float, float]:
        """Of the main process, of all workers, and of the stage's event loop."""
        workers = sum(cpu_s(worker) for worker in self.workers)
        return cpu_s(self.process.pid), workers, cpu_s(self.stage, self.stage)


def read_all(port: int, streams: int) -> int:
    """Sends as many requests, and reads their answers to the end. Returns the number of events."""
    messages = [{"role": "user", "content": "hello"}]
    body = json.dumps({"model": "m", "messages": messages, "stream": True}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    events = 0
    with selectors.DefaultSelector() as selector:
        for _ in range(streams):
            client = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            selector.register(client, selectors.EVENT_READ, b"")
        while selector.get_map():
            for key, _ in selector.select():
                data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                if not data:
                    raise SystemExit(f"a connection was cut after {key.data!r}")
                events += data.count(_EVENT)
                last = (key.data + data)[-64:]
                if last.endswith(b"0\r\n\r\n"):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                else:
                    selector.modify(key.fileobj, selectors.EVENT_READ, last)
    return events


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--step-s", type=float, default=0.01, help="seconds a step; 0: as fast as they go")
    parser.add_argument("--tokens", type=int, default=400, help="of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--api-workers", type=int, nargs="+", default=[1, 2], metavar="N", help="to compare, in turns"
    )
    parser.add_argument(
        "--python", nargs="+", default=[sys.executable], help="environments to compare, in turns"
    )
    args = parser.parse_args(argv)
    progress(f"load {conditions()['load']}")
    taken: dict[tuple[str, int, int], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        servers: list[tuple[str, int, Server]] = []
        for python, workers in itertools.product(args.python, args.api_workers):
            (own := Path(folder) / str(len(servers))).mkdir()
            servers.append((python, workers, Server(str(own), args.tokens, args.step_s, python, workers)))
        try:
            for number in range(1 + args.rounds):
                for streams in args.streams:
                    for python, workers, server in servers:
                        figures = server.window(streams, args.tokens)
                        if number:  # the first one warms up
                            taken.setdefault((python, workers, streams), []).append(figures)
        finally:
            for *_, server in servers:
                server.close()
    print(
        "| environment | API workers | streams | main process, us a token | workers, us | stage's loop, us | "
        "events a token | tokens/s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (python, workers, streams), windows in taken.items():
        main_us, own, loop, events, rate = (statistics.median(each) for each in zip(*windows, strict=True))
        print(
            f"| {python} | {workers} | {streams} | {main_us:.1f} | {own:.1f} | {loop:.1f} | {events:.2f} | "
            f"{rate:,.0f} |"
        )
    progress(f"load {conditions()['load']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
