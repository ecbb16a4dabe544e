"""A scripted replica in a process of its own, for what signals do to one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from router_harness import Replica, Seen, response


async def _answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Answers with its process id; a body of {"pause": seconds} streams two pieces that far apart."""
    pause = json.loads(seen.body or b"{}").get("pause")
    if pause is None:
        writer.write(response(str(os.getpid()).encode()))
        return
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
    await asyncio.sleep(pause)
    writer.write(b"4\r\nlast\r\n0\r\n\r\n")


async def _serve(port: int) -> None:
    replica = Replica(_answer)
    replica.port = port
    await replica.start()
    print(replica.port, flush=True)
    await asyncio.Event().wait()


class ReplicaProcess:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


async def _launch(port: int = 0) -> ReplicaProcess:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, str(port)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert process.stdout is not None
    return ReplicaProcess(process, int(await process.stdout.readline()))


@contextlib.asynccontextmanager
async def replica_processes(count: int, port: int = 0) -> AsyncIterator[list[ReplicaProcess]]:
    """Replicas as processes, each told from the others by its pid; `port` is for one alone."""
    started: list[ReplicaProcess] = []
    try:
        while len(started) < count:
            started.append(await _launch(port))
        yield started
    finally:
        for replica in started:
            if replica.process.returncode is None:
                replica.process.kill()
            await replica.process.wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
