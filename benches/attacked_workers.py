"""Workers for attacked routers: each does what the prompt tells it to do, and counts what it sees."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

# What a prompt asks of its worker.
SILENT, RESET, SLOW_RESET = "be silent", "reset", "work, then reset"
WORK_S = 0.3

_HEAD = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
_EVENT = {
    "id": "c",
    "object": "chat.completion.chunk",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "hello"}, "finish_reason": None}],
}
_CARDS: dict[str, dict[str, Any]] = {
    "/v1/models": {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "o"}]},
    "/get_model_info": {"model_path": "m", "is_generation": True},
    "/model_info": {"model_path": "m", "is_generation": True},
    "/get_server_info": {"model_path": "m", "served_model_name": "m", "version": "0.5"},
    "/server_info": {"model_path": "m", "served_model_name": "m", "version": "0.5"},
}


class Workers:
    """Some HTTP workers on ports of their own, all in one thread.

    Attributes:
        ports: Where they listen.
        seen: ``(port, what the prompt asked for)`` -> how often it came; ``(port, "")`` for all others.
        keys: The ``Authorization`` headers that each port was shown.
    """

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.seen: Counter[tuple[int, str]] = Counter()
        self.keys: dict[int, set[str]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _HEAD.search(head)
                body = await reader.readexactly(int(found[1])) if found else b""
                self._note_key(port, head)
                words = head.split(b" ", 2)
                # Some routers try HTTP/2 first.
                if len(words) < 3 or not await self._answer(port, words[1].decode(), body, writer):
                    writer.transport.abort()
                    return
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            writer.close()

    def _note_key(self, port: int, head: bytes) -> None:
        for line in head.decode("latin-1").split("\r\n"):
            if line.lower().startswith("authorization:"):
                self.keys.setdefault(port, set()).add(line.partition(":")[2].strip())

    async def _answer(self, port: int, path: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection is kept."""
        path = path.partition("?")[0]
        if b'"messages"' not in body:
            writer.write(_whole(_CARDS.get(path, {"status": "ok"})))
            return True
        asked = next((word for word in (SLOW_RESET, RESET, SILENT) if word.encode() in body), "")
        self.seen[port, asked] += 1
        if asked == SLOW_RESET:
            await asyncio.sleep(WORK_S)
            return False
        if asked == RESET:
            return False
        if asked == SILENT:
            event = f"data: {json.dumps(_EVENT)}\n\n".encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                + f"{len(event):x}\r\n".encode()
                + event
                + b"\r\n"
            )
            await writer.drain()
            await asyncio.sleep(120)
            return False
        writer.write(_whole(_ANSWER))
        return True


def _whole(answer: dict[str, Any]) -> bytes:
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextlib.contextmanager
def attacked_workers(count: int) -> Iterator[Workers]:
    workers = Workers()
    loop = asyncio.new_event_loop()

    async def listen() -> None:
        for _ in range(count):
            server = await asyncio.start_server(workers.serve, "127.0.0.1", 0, limit=1 << 20)
            workers.ports.append(server.sockets[0].getsockname()[1])

    loop.run_until_complete(listen())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield workers
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
