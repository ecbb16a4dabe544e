"""The soak's clients: every kind of request, and what may and may not become of it.

A request that had no answer yet and whose body the router can send again has to succeed as long as one
replica lives that is not busy. Of the others: a stream, or any answer that has begun, may be cut or held up
by the death or the hanging of its own replica, and then must not look complete; a body too large to be held
may fail or be held up when a replica was disturbed while it was under way, or was busy. Everything else is a
problem.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from router_workers import EVENTS, LIMIT, STREAM_END, Chaos, event

# An answer that has not begun by now counts as none; so does the rest of one that has.
PATIENCE_S = 15.0
WORKER_HEADER = "x-sglang-omni-worker"


class Problem(Exception):
    """What must not happen."""


class Cut(Exception):
    """The connection ended within an answer, or nothing more came of it."""


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:] if line)}
        return int(lines[0].split(" ")[1]), headers

    async def body(self, headers: dict[str, str]) -> bytes:
        """All of it; ``Cut`` where that does not come."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                if headers.get("transfer-encoding") != "chunked":
                    return await self.reader.readexactly(int(headers.get("content-length", 0)))
                pieces = []
                while size := int(await self.reader.readline() or b"cut", 16):
                    pieces.append((await self.reader.readexactly(size + 2))[:-2])
                await self.reader.readexactly(2)
                return b"".join(pieces)
        except TimeoutError as error:
            raise Cut("held up") from error
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise Cut("cut") from error


class Traffic:
    """Clients without a pause between two requests. ``url`` is the router's."""

    def __init__(self, url: str, chaos: Chaos, seed: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname, parts.port)
        self._chaos = chaos
        self._draw = random.Random(seed)
        self.outcomes: dict[str, Counter[str]] = {}
        self.slowest: dict[str, float] = {}
        self.problems: list[str] = []
        self._large = os.urandom(1 << 20) * 20
        kinds: list[tuple[int, str, Callable[[], Awaitable[str]]]] = [
            (40, "JSON", lambda: self._post("application/json", self._prompt(1200))),
            (10, "JSON, chunked", lambda: self._post("application/json", self._prompt(5000), chunked=True)),
            (10, "JSON, 64 KB", lambda: self._post("application/json", self._prompt(64_000))),
            (5, "multipart, 300 KB", lambda: self._post("multipart/form-data; boundary=b", self._form())),
            (2, "upload, 20 MB", lambda: self._post("application/octet-stream", self._large, held=False)),
            (20, "stream", self._stream),
            (5, "upgrade", self._upgrade),
            (3, "slow client", self._slow),
            (5, "client leaves", self._leave),
        ]
        self._kinds = [kind[1:] for kind in kinds]
        self._weights = [kind[0] for kind in kinds]

    async def run(self, clients: int, until: float) -> None:
        await asyncio.gather(*(self._client(until) for _ in range(clients)))

    async def _client(self, until: float) -> None:
        while time.monotonic() < until:
            [(name, ask)] = self._draw.choices(self._kinds, self._weights)
            began = time.monotonic()
            try:
                async with asyncio.timeout(3 * PATIENCE_S):
                    outcome = await ask()
            except Problem as problem:
                outcome = self._problem(name, began, str(problem))
            except TimeoutError:
                outcome = self._problem(name, began, "no answer")
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                outcome = self._problem(name, began, f"closed without an answer: {error!r}")
            self.outcomes.setdefault(name, Counter())[outcome] += 1
            self.slowest[name] = max(self.slowest.get(name, 0.0), time.monotonic() - began)

    def _problem(self, name: str, began: float, text: str) -> str:
        self.problems.append(f"{name}, after {time.monotonic() - began:.2f} s: {text}")
        return "problem"

    async def _connect(self) -> Connection:
        reader, writer = await asyncio.open_connection(*self._address, limit=LIMIT)
        return Connection(reader, writer)

    def _prompt(self, length: int) -> bytes:
        """One of a few conversations, and its own end."""
        number = self._draw.randrange(50)
        text = f"conversation {number} " * (length // 18) + str(self._draw.random())
        return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()

    def _form(self) -> bytes:
        part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        return part + self._draw.randbytes(300_000) + b"\r\n--b--\r\n"

    async def _post(self, kind: str, body: bytes, held: bool = True, chunked: bool = False) -> str:
        began = time.monotonic()
        connection = await self._connect()
        length = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
        try:
            head = f"POST /v1/echo HTTP/1.1\r\nhost: soak\r\ncontent-type: {kind}\r\n{length}\r\n\r\n"
            connection.writer.write(head.encode())
            connection.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
            try:
                await connection.writer.drain()
                status, headers = await connection.head()
                answer = await connection.body(headers)
            except (Cut, asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
                if not held and self._chaos.disturbed(began):
                    return "held up" if isinstance(error, TimeoutError) else "failed: connection closed"
                raise Problem(f"no answer: {error!r}") from error
            if status == 200:
                if json.loads(answer) != {"checksum": zlib.crc32(body), "length": len(body)}:
                    raise Problem(f"the replica received something else: {answer!r}")
                return "answered"
            if not held and status == 503 and b"checksum" in answer:
                return "a busy replica's 503"
            if not held and status in (502, 503, 504) and self._chaos.disturbed(began):
                return f"failed: {status}"
            raise Problem(f"{status} {answer[:300]!r}")
        finally:
            connection.writer.close()

    def _excused(self, cut: Cut, headers: dict[str, str], began: float) -> str:
        port = int(headers[WORKER_HEADER].rsplit(":", 1)[1])
        if not self._chaos.disturbed(began, port):
            raise Problem(f"{cut}, though replica {port} was well")
        return f"{cut} with its replica"

    async def _stream(self) -> str:
        began = time.monotonic()
        connection = await self._connect()
        body = self._prompt(1200)
        try:
            connection.writer.write(_head("/stream", len(body)) + body)
            status, headers = await connection.head()
            if status != 200:
                raise Problem(f"{status} {(await connection.body(headers))[:300]!r}")
            try:
                text = await connection.body(headers)
            except Cut as cut:
                return self._excused(cut, headers, began)
            if text != b"".join(map(event, range(EVENTS))) + STREAM_END:
                raise Problem(f"an incomplete stream looks complete: {text[-80:]!r}")
            return "answered"
        finally:
            connection.writer.close()

    async def _upgrade(self) -> str:
        began = time.monotonic()
        connection = await self._connect()
        try:
            connection.writer.write(
                b"GET /v1/realtime HTTP/1.1\r\nhost: soak\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"
            )
            status, headers = await connection.head()
            if status != 101:
                raise Problem(f"{status} {(await connection.body(headers))[:300]!r}")
            for number in range(10):
                said = f"{number} {self._draw.random()}".encode()
                connection.writer.write(said)
                try:
                    heard = await connection.body({"content-length": str(len(said))})
                except Cut as cut:
                    return self._excused(cut, headers, began)
                if heard != said:
                    raise Problem(f"said {said!r}, heard {heard!r}")
                await asyncio.sleep(0.02)
            return "answered"
        finally:
            connection.writer.close()

    async def _slow(self) -> str:
        """Sends and reads a few bytes at a time."""
        began = time.monotonic()
        connection = await self._connect()
        body = self._prompt(300)
        request = _head("/v1/echo", len(body)) + body
        try:
            for start in range(0, len(request), 25):
                connection.writer.write(request[start : start + 25])
                await asyncio.sleep(0.02)
            status, headers = await connection.head()
            answer = b""
            while len(answer) < int(headers["content-length"]):
                if not (byte := await connection.reader.read(1)):
                    raise Problem(f"the answer ended after {len(answer)} bytes")
                answer += byte
                await asyncio.sleep(0.002)
            if status != 200 or json.loads(answer)["checksum"] != zlib.crc32(body):
                raise Problem(f"{status} {answer[:300]!r} after {time.monotonic() - began:.2f} s")
            return "answered"
        finally:
            connection.writer.close()

    async def _leave(self) -> str:
        """Goes away within its request, before the answer, or within the answer."""
        connection = await self._connect()
        body = self._prompt(1200)
        request = _head("/stream", len(body)) + body
        when = self._draw.choice(["while sending", "before the answer", "within the answer"])
        connection.writer.write(request[:600] if when == "while sending" else request)
        await connection.writer.drain()
        if when == "within the answer":
            await connection.head()
            await connection.reader.read(10)
        connection.writer.transport.abort()
        return f"left {when}"


def _head(path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    ).encode()
