"""The whole path of a request: client, router, and a server with a pipeline of its own, as users run them.

The mock workers of the other cases cannot show what a server's sockets do: an answer that waited 40 ms for
an acknowledgement on every kept connection passed them all. One client asks in turn over one connection a
way, each kept for all of its requests.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import progress
from router_cases import Row
from router_ways import (
    OURS,
    ROOT,
    Way,
    cores,
    environment,
    free_port,
    pass_through,
    router,
    start,
    stop,
    until_listening,
)

TITLE = "through router and real server, kept connection"
# What the router may add to the direct path at the median.
MUST_S, AIM_S = 1e-3, 0.3e-3
WARM_UP, REQUESTS = 50, 400
_CONFIG = """
model_path: none
name: words
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: say, process: say, factory: served_words.Words, terminal: true}}
"""


@contextlib.contextmanager
def server() -> Iterator[int]:
    """``launch_server`` with a pipeline of one stage, in processes of its own; yields its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "words.yaml"
        config.write_text(_CONFIG.format(folder=folder))
        words = [sys.executable, "-m", "sglang_omni.launch_server", "--config", str(config)]
        words += ["--port", str(port), "--served-model-name", "m"]
        variables = environment(OURS)
        variables["PYTHONPATH"] += f":{ROOT / 'benches'}"
        process = start(words, cores()[1], "server", env=variables)
        try:
            until_listening(port, process)
            yield port
        finally:
            stop(process)


class Kept:
    """One connection, for one request after another."""

    def __init__(self, way: Way) -> None:
        self._socket = socket.create_connection(("127.0.0.1", way.port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def ask(self, *, stream: bool) -> float:
        """Seconds to the first event of a stream, or to the end of a whole answer."""
        messages = [{"role": "user", "content": f"hello {random.random()}"}]
        body = json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        self._socket.sendall(head.encode() + body)
        if stream:
            received, took = self._until(began, b"", b"\n\n")
            self._until(began, received, b"\r\n0\r\n\r\n")
            return took
        received, took = self._until(began, b"", b"\r\n\r\n")
        answer = received.partition(b"\r\n\r\n")
        length = int(answer[0].lower().partition(b"content-length: ")[2].split()[0])
        missing = length - len(answer[2])
        while missing > 0:
            missing -= len(self._receive())
            took = time.perf_counter() - began
        return took

    def _until(self, began: float, received: bytes, end: bytes) -> tuple[bytes, float]:
        while end not in received:
            received += self._receive()
        took = time.perf_counter() - began
        if not received.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the request failed: {received[:400]!r}")
        return received, took

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise SystemExit("the connection was not kept")
        return data


def rows(names: list[str], extra: dict[str, str], failures: dict[str, dict[str, str]]) -> list[Row]:
    """Whole answers and first events, direct, through a bare pass-through and each router, in turns."""
    progress(TITLE)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(server())
        ways = [Way("direct", port), stack.enter_context(pass_through(port))]
        for name in names:
            way = stack.enter_context(router(name, [port], extra.get(name)))
            if way.failure is None:
                ways.append(way)
            else:
                failures.setdefault(TITLE, {})[name] = way.failure
        kept = {way.name: stack.enter_context(contextlib.closing(Kept(way))) for way in ways}
        return [
            _row(f"{TITLE}: {what}, p50", _medians(kept, stream=stream))
            for what, stream in (("whole answer", False), ("first event", True))
        ]


def _medians(kept: dict[str, Kept], *, stream: bool) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in kept}
    for turn in range(WARM_UP + REQUESTS):
        for name in random.sample(list(kept), len(kept)):
            seconds = kept[name].ask(stream=stream)
            if turn >= WARM_UP:
                taken[name].append(seconds)
    return {name: statistics.median(each) for name, each in taken.items()}


def _row(case: str, medians: dict[str, float]) -> Row:
    direct: Any = medians["direct"]
    return Row(case, "s", "lower", medians, direct + MUST_S, direct + AIM_S)
