"""What the client of ``sgl-omni bench serve`` costs itself, for each request and each piece of a stream.

    python benches/bench_client.py

A server that does nothing, in a process of its own, answers each request with the same events. The first run
has one piece an answer, so that its figure is the cost of a request; the second has many.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PIECE = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " word"}}]}
LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def event(data: str) -> bytes:
    body = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


class Idle(asyncio.Protocol):
    """Answers any POST with so many pieces, one each millisecond."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.received = pieces, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0) if found else 0
        if found and len(body) >= length:
            self.received = body[length:]
            self.task = asyncio.ensure_future(self.answer())

    async def answer(self) -> None:
        write = self.transport.write  # type: ignore[attr-defined]
        write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(self.pieces):
            write(event(json.dumps(PIECE)))
            if self.pieces > 1:
                await asyncio.sleep(0.001)
        write(event(json.dumps(LAST)) + event("[DONE]") + b"0\r\n\r\n")


async def serve(pieces: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Idle(pieces), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def run(pieces: int, requests: int, concurrency: int) -> None:
    command = [sys.executable, __file__, "--serve", str(pieces)]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        file = Path(folder) / "run.json"
        load = ["--num-prompts", str(requests), "--concurrency", str(concurrency), "--output-json", str(file)]
        bench = [sys.executable, "-m", "sglang_omni", "bench", "serve", "--model", "none", *load]
        subprocess.run([*bench, "--url", f"http://127.0.0.1:{port}"], check=True, stdout=subprocess.DEVNULL)
        server.terminate()
        told = json.loads(file.read_text())
    us = 1e6 * told["client_core_share"] * told["duration"] / told["completed"]
    print(
        f"{concurrency} at once, pieces an answer: {pieces}, a second: {told['request_throughput']:.0f}, "
        f"of a core: {told['client_core_share']:.0%}; us a request: {us:.0f}, us a piece: {us / pieces:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return
    run(pieces=1, requests=4000, concurrency=32)
    run(pieces=128, requests=1000, concurrency=64)


if __name__ == "__main__":
    main()
