"""The soak's replicas: real processes that are killed, stopped, continued and started again.

python tests/soak/router_workers.py PORT BUSY_SHARE    one replica

A replica answers with the checksum of the body it received, so a client can tell that all of it came through.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import signal
import sys
import time
import zlib
from collections import Counter
from dataclasses import dataclass

from sglang_omni.supervision.ports import bind

# A stream's events, and the pause between two of them in seconds.
EVENTS, PAUSE_S = 20, 0.01
# The first replica answers this share with 503, which is for the router to repeat elsewhere.
BUSY_SHARE = 0.05
# A router may take this long to use a replica that is back.
RECOVERY_S = 5.0
LONGEST_HANG_S = 25.0
LIMIT = 1 << 20


def completion(checksum: int, length: int) -> bytes:
    return json.dumps({"checksum": checksum, "length": length}).encode()


def event(number: int) -> bytes:
    return f"data: {number}\n\n".encode()


STREAM_END = b"data: [DONE]\n\n"


async def read_message(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], int, int]:
    """First line, headers by lower-case name, and of the body checksum and length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
    if headers.get("transfer-encoding") == "chunked":
        checksum = length = 0
        while size := int(await reader.readline(), 16):
            checksum = zlib.crc32((await reader.readexactly(size + 2))[:-2], checksum)
            length += size
        await reader.readline()
        return head[0], headers, checksum, length
    left = length = int(headers.get("content-length", 0))
    checksum = 0
    while left:
        piece = await reader.read(min(left, LIMIT))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        checksum = zlib.crc32(piece, checksum)
        left -= len(piece)
    return head[0], headers, checksum, length


async def _serve(busy: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    draw = random.Random()
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            line, headers, checksum, length = await read_message(reader)
            path = line.split(" ")[1]
            if "upgrade" in headers:
                writer.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"
                )
                while piece := await reader.read(LIMIT):
                    writer.write(piece)
                    await writer.drain()
                break
            if path == "/stream":
                await _stream(writer)
                continue
            status = "200 OK"
            if path != "/health":
                await asyncio.sleep(draw.uniform(0, 0.02))
                status = "503 Busy" if draw.random() < busy else status
            body = completion(checksum, length)
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
    writer.close()


async def _stream(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for piece in [*map(event, range(EVENTS)), STREAM_END, b""]:
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(PAUSE_S)


async def _main(port: int, busy: float) -> None:
    serve = functools.partial(_serve, busy)
    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=LIMIT, backlog=1024)
    await server.serve_forever()


@dataclass
class Replica:
    port: int
    busy_share: float
    process: asyncio.subprocess.Process | None = None
    is_well: bool = False

    async def start(self) -> None:
        """Returns once it takes connections."""
        arguments = [__file__, str(self.port), str(self.busy_share)]
        self.process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
        while True:
            with contextlib.suppress(OSError):
                (await asyncio.open_connection("127.0.0.1", self.port))[1].close()
                return
            await asyncio.sleep(0.02)

    async def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
        self.process = None


class Chaos:
    """Disturbs one replica after another, but never the last that is well and not busy; remembers when."""

    def __init__(self, count: int, seed: int) -> None:
        shares = [BUSY_SHARE] + [0.0] * (count - 1)
        # While a replica is dead, no other program gets its port.
        self._held = [bind("127.0.0.1") for _ in shares]
        ports = [held.getsockname()[1] for held in self._held]
        self.replicas = [Replica(port, share) for port, share in zip(ports, shares, strict=True)]
        self.happened: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._until = 0.0
        # By port: when what was done to it began and ended; the end of what still goes on is infinite.
        self._spans: dict[int, list[tuple[float, float]]] = {replica.port: [] for replica in self.replicas}

    async def start(self) -> None:
        await asyncio.gather(*(replica.start() for replica in self.replicas))
        for replica in self.replicas:
            replica.is_well = True

    async def stop(self) -> None:
        await asyncio.gather(*(replica.kill() for replica in self.replicas))

    async def run(self, until: float) -> None:
        """Returns soon after the given time of ``time.monotonic``, with all replicas up."""
        self._until = until
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < until:
                await asyncio.sleep(self._draw.uniform(0.2, 2.0))
                living = [replica for replica in self.replicas if replica.is_well]
                chosen = self._draw.choice(living)
                if any(replica is not chosen and not replica.busy_share for replica in living):
                    tasks.create_task(self._disturb(chosen))
                    # The task has begun, so that the replica does not count as living any more.
                    await asyncio.sleep(0)

    def disturbed(self, since: float, port: int | None = None) -> bool:
        """True if a replica, or the one given, was dead or hung at any time from ``since`` until now."""
        ports = [port] if port is not None else list(self._spans)
        return any(end >= since for known in ports for _, end in self._spans[known])

    async def _disturb(self, replica: Replica) -> None:
        began = time.monotonic()
        replica.is_well = False
        spans = self._spans[replica.port]
        spans.append((began, float("inf")))
        kind = self._draw.choice(["killed", "killed", "hung", "hung, then killed"])
        self.happened[kind] += 1
        assert replica.process is not None
        if kind.startswith("hung"):
            replica.process.send_signal(signal.SIGSTOP)
            await self._pause(self._draw.uniform(0.5, LONGEST_HANG_S))
        if kind.endswith("killed"):
            await replica.kill()
            await self._pause(self._draw.uniform(0.0, 4.0))
            await replica.start()
        else:
            replica.process.send_signal(signal.SIGCONT)
        spans[-1] = (began, time.monotonic())
        await self._pause(RECOVERY_S)
        replica.is_well = True

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, min(seconds, self._until - time.monotonic())))


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2])))
