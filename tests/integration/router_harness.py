"""What the router's tests talk to: scripted replicas on real sockets, and a client that sees raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from waiting import PATIENCE

from sglang_omni._core import RouterServer
from sglang_omni.router import RouterConfig


@dataclass(frozen=True)
class Seen:
    """One request as a replica received it."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


def response(body: bytes = b"ok", status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


async def read_head(reader: asyncio.StreamReader) -> tuple[str, list[tuple[str, str]]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = [line.partition(":") for line in head[1:] if line]
    return head[0], [(name, value.strip(" ")) for name, _, value in fields]


async def read_body(reader: asyncio.StreamReader, headers: list[tuple[str, str]]) -> bytes:
    named = {name.lower(): value for name, value in headers}
    if named.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return body
    return await reader.readexactly(int(named.get("content-length", 0)))


Handler = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


class Replica:
    """A server that records requests and answers each with `handler`.

    `/health` is answered by `healthy`, or not at all while `health_hangs`.
    """

    def __init__(self, handler: Handler | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.handler = handler or self.answer_ok
        self.seen: list[Seen] = []
        self.healthy = True
        self.models: list[str] | None = None  # What it tells the router that it serves.
        self.health_hangs = False
        self.health_headers = ""
        self.metrics = b"ok"  # The page of its own metrics.
        self.scrapes = 0
        self.carriers = 0  # Connections that carried a request.
        self.scraped = asyncio.Event()  # Set if it gives that page; if not, the router waits.
        self.scraped.set()
        self.probes = 0
        self.last_probe: Seen | None = None
        self.closed = asyncio.Event()  # A connection that carried a request has ended.
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @staticmethod
    async def answer_ok(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response())

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the port and every connection, as a process that dies does."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        served = False
        try:
            while True:
                line, headers = await read_head(reader)
                body = await read_body(reader, headers)
                if line.split(" ")[1] == "/v1/models" and ("user-agent", "sglang-omni-router") in headers:
                    # The router asks by itself, now and then.
                    entries = [{"id": name} for name in self.models or []]
                    body = json.dumps({"object": "list", "data": entries}).encode()
                    writer.write(response(body, "404 No" if self.models is None else "200 OK"))
                    continue
                if line.split(" ")[1] == "/metrics":
                    # The router asks for them when it is asked for its own.
                    self.scrapes += 1
                    await self.scraped.wait()
                    writer.write(response(self.metrics))
                    continue
                if line.split(" ")[1] == "/health":
                    self.probes += 1
                    self.last_probe = Seen(line, headers, body)
                    if self.health_hangs:
                        await reader.read()  # Until the router loses patience.
                        return
                    status = "200 OK" if self.healthy else "503 Down"
                    writer.write(response(status=status, headers=self.health_headers))
                    continue
                self.carriers += not served
                served = True
                seen = Seen(line, headers, body)
                self.seen.append(seen)
                # A client that leaves ends the handler, as it does in real servers.
                answer = asyncio.ensure_future(self.handler(seen, writer))
                gone = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    answer.cancel()
                    return
                answer.result()
                if writer.is_closing():
                    gone.cancel()
                    return
                first = await gone
                if not first:
                    return
                reader._buffer[:0] = first  # type: ignore[attr-defined]  # Put back what told of the next request.
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            if served:
                self.closed.set()


class HoldingReplica(Replica):
    """Answers each request once it is let go."""

    def __init__(self) -> None:
        super().__init__(self.hold)
        self.go = asyncio.Semaphore(0)

    async def hold(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        await self.go.acquire()
        writer.write(response(seen.body))

    async def has(self, count: int) -> None:
        await until(lambda: len(self.seen) >= count, f"{count} requests at the worker")


@contextlib.asynccontextmanager
async def replicas(
    *handlers: Handler | None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[list[Replica]]:
    started = [Replica(handler, tls) for handler in handlers]
    for replica in started:
        await replica.start()
    try:
        yield started
    finally:
        for replica in started:
            await replica.stop()


@contextlib.asynccontextmanager
async def raw_worker(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A worker whose connections `serve` handles, but for what the router asks by itself; yields its URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith((b"GET /health ", b"GET /metrics ", b"GET /v1/models ")):
                writer.write(response())
            else:
                reader._buffer[:0] = head  # type: ignore[attr-defined]
                await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def websocket_echo(tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A worker that sends back what comes over WebSocket on `/v1/realtime`; yields its URL."""

    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("realtime",))
        await socket.prepare(request)
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                await socket.send_str(message.data)
            else:
                await socket.send_bytes(message.data)
        return socket

    app = web.Application()
    app.router.add_get("/v1/realtime", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Served(Protocol):
    @property
    def url(self) -> str: ...


@contextlib.asynccontextmanager
async def router(*workers: Served | str, **options: Any) -> AsyncIterator[str]:
    """A router in this process; yields its URL."""
    urls = [worker if isinstance(worker, str) else worker.url for worker in workers]
    defaults: dict[str, Any] = {
        "port": 0,
        "policy": "round_robin",
        "threads": 1,
        "probe_interval": 0.1,
        # Tests tell workers apart by their URLs.
        "expose_worker_urls": True,
    }
    server = RouterServer(json.dumps(vars(RouterConfig(worker_urls=urls, **(defaults | options)))))
    try:
        yield server.url
    finally:
        server.stop()
        assert await asyncio.to_thread(server.wait, PATIENCE), "the router did not end"


COMMAND = [sys.executable, "-m", "sglang_omni.launch_router"]


@contextlib.asynccontextmanager
async def ending(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """The process does not outlive the block."""
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def launched(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A router in a process of its own; yields the process and the router's URL."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--port", "0", "--expose-worker-urls", *options, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async with ending(process):
        before = b""
        while not (found := re.search(rb'listening on ([^\s"]+)', line := await process.stderr.readline())):
            assert line, "the router ended before it listened"
            before += line
        # Its workers are asked from the start, so that "worker is up" may come first: put back for the test.
        process.stderr._buffer[:0] = before  # type: ignore[attr-defined]
        yield process, found[1].decode()


@dataclass(frozen=True)
class Answer:
    line: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.line.split(" ")[1])

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


# What the router refuses before it looks at workers.
CODES = {
    400: "invalid_http",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    414: "uri_too_long",
    431: "headers_too_large",
}
TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def assert_error(answer: Answer, status: int, *words: str, code: str | None = None) -> None:
    """The router refused: in OpenAI's shape, and saying `words`."""
    error = json.loads(answer.body)["error"]
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    assert (answer.status, error["code"], error["type"]) == (status, code or CODES[status], kind)
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in error["message"]


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)


async def asking(url: str, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection over which these bytes are sent."""
    reader, writer = await connect(url)
    writer.write(request)
    return reader, writer


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    line, headers = await asyncio.wait_for(read_head(reader), PATIENCE)
    return Answer(line, headers, await read_body(reader, headers))


async def send_raw(url: str, request: bytes) -> Answer:
    """Sends bytes on a connection of its own and reads one answer."""
    reader, writer = await asking(url, request)
    try:
        line, headers = await read_head(reader)
        has_body = not request.startswith(b"HEAD") and line.split(" ")[1] not in ("204", "304")
        return Answer(line, headers, await read_body(reader, headers) if has_body else b"")
    finally:
        writer.close()


async def post(
    url: str, body: bytes = b"{}", path: str = "/v1/chat/completions", headers: str = ""
) -> Answer:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return await send_raw(url, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def get(url: str, path: str, headers: str = "") -> Answer:
    return await send_raw(url, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())


async def change(url: str, method: str, path: str, body: object = None) -> Answer:
    """Asks with any method, and a JSON body if there is one."""
    data = b"" if body is None else json.dumps(body).encode()
    kind = "" if body is None else "Content-Type: application/json\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(data)}\r\n\r\n"
    return await send_raw(url, head.encode() + data)


async def listed(url: str) -> list[dict[str, Any]]:
    """The router's workers in the order of its list."""
    return json.loads((await get(url, "/workers")).body)["workers"]


async def served_by(url: str, body: object, headers: str = "") -> str | None:
    return (await post(url, json.dumps(body).encode(), headers=headers)).header("x-sglang-omni-worker")


async def until(condition: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    """Waits for a condition."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not (await found if isinstance(found := condition(), Awaitable) else found):
        assert asyncio.get_running_loop().time() < deadline, f"never came true: {what}"
        await asyncio.sleep(0.02)


async def comes_to(wanted: object, ask: Callable[..., Awaitable[object]], *arguments: object) -> None:
    """Waits until what `ask` finds is what is wanted."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while (found := await ask(*arguments)) != wanted:
        assert asyncio.get_running_loop().time() < deadline, f"{ask} finds {found}, never {wanted}"
        await asyncio.sleep(0.02)


async def workers(url: str) -> dict[str, dict[str, Any]]:
    """The router's workers by their URL."""
    return {worker["url"]: worker for worker in await listed(url)}


async def load_of(url: str) -> int:
    """Requests in flight at the router's only worker."""
    [worker] = await listed(url)
    return int(worker["load"])


async def state_of(url: str, worker: str) -> str:
    return str((await workers(url))[worker]["state"])


async def becomes(url: str, worker: Served | str, state: str) -> None:
    """Waits until the router finds a worker to be so."""
    await comes_to(state, state_of, url, worker if isinstance(worker, str) else worker.url)


async def status_of(url: str, path: str) -> int:
    return (await get(url, path)).status


async def metric(url: str, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = (await get(url, "/metrics")).body.decode().splitlines()
    prefix = f"sglang_omni_router_{name}"
    named = [line for line in lines if line.startswith((f"{prefix} ", f"{prefix}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in named)


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}\r\n"


def answering(status: str, headers: str = "") -> Handler:
    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(status.encode(), status, headers))

    return handler


class Holding:
    """A handler that says when it was asked, and answers when told to."""

    def __init__(self) -> None:
        self.asked, self.finish = asyncio.Event(), asyncio.Event()

    async def __call__(self, _seen: Seen, writer: asyncio.StreamWriter) -> None:
        self.asked.set()
        await self.finish.wait()
        writer.write(response(b"finished"))


async def reset(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Ends the connection without an answer."""
    writer.transport.abort()
