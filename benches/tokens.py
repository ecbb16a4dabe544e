"""``make bench-tokens``: what a streamed token costs in the API process and in its stage's event loop.

``launch_server`` serves a pipeline of one stage, in a process of its own, whose scheduler gives every running
request a token a step, at a fixed pace. The client reads bytes and parses none of them. CPU time is that of
the threads, from the kernel, so that a busy machine changes it less than a time on the clock.

python benches/tokens.py [--streams 1 64] [--step-s 0.01] [--python OLD/bin/python NEW/bin/python]
"""

from __future__ import annotations

import argparse
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
        api_us: CPU of the API process a token, in microseconds.
        loop_us: Of the thread of the stage's event loop.
        events: Server-sent events a token.
        tokens_per_s: Tokens a second of the clock.
    """

    api_us: float
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

    def __init__(self, folder: str, tokens: int, step_s: float, python: str = sys.executable) -> None:
        config = Path(folder) / "tokens.yaml"
        config.write_text(_CONFIG.format(folder=folder, tokens=tokens, step_s=step_s))
        here = str(Path(__file__).parent)
        log = Path(folder) / "log"
        command = [python, "-m", "sglang_omni.launch_server", "--config", str(config), "--port", "0"]
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
        self.stage = self._stage()

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

    def _stage(self) -> int:
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            with open(f"/proc/{child}/cmdline", "rb") as file:
                command = file.read()
            if b"resource_tracker" not in command:
                return int(child)
        raise SystemExit("the stage has no process of its own")

    def window(self, streams: int, tokens: int) -> Figures:
        """One answer to each of ``streams`` clients at once."""
        api, loop = cpu_s(self.process.pid), cpu_s(self.stage, self.stage)
        began = time.perf_counter()
        events = read_all(self.port, streams)
        took = time.perf_counter() - began
        total = streams * tokens
        return Figures(
            (cpu_s(self.process.pid) - api) / total * 1e6,
            (cpu_s(self.stage, self.stage) - loop) / total * 1e6,
            events / total,
            total / took,
        )


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
        "--python", nargs="+", default=[sys.executable], help="environments to compare, in turns"
    )
    args = parser.parse_args(argv)
    progress(f"load {conditions()['load']}")
    taken: dict[tuple[str, int], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        servers = []
        for number, python in enumerate(args.python):
            (own := Path(folder) / str(number)).mkdir()
            servers.append((python, Server(str(own), args.tokens, args.step_s, python)))
        try:
            for number in range(1 + args.rounds):
                for streams in args.streams:
                    for python, server in servers:
                        figures = server.window(streams, args.tokens)
                        if number:  # the first one warms up
                            taken.setdefault((python, streams), []).append(figures)
        finally:
            for _, server in servers:
                server.close()
    print("| environment | streams | API, us a token | stage's loop, us | events a token | tokens/s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (python, streams), windows in taken.items():
        api, loop, events, rate = (statistics.median(column) for column in zip(*windows, strict=True))
        print(f"| {python} | {streams} | {api:.1f} | {loop:.1f} | {events:.2f} | {rate:,.0f} |")
    progress(f"load {conditions()['load']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
