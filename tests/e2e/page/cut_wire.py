"""A wire between a browser and a server that a test can cut."""

from __future__ import annotations

import asyncio
import threading
from urllib.parse import urlsplit


class Wire:
    """Forwards TCP connections to a server.

    Attributes:
        base_url: Where the server can be reached through it.
        heads: The first bytes of each connection that the browser has made.
    """

    def __init__(self, upstream: str) -> None:
        self.base_url = ""
        self.heads: list[bytes] = []
        self._upstream = urlsplit(upstream)
        self._writers: list[asyncio.StreamWriter] = []
        self._is_whole = True
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Wire:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self.cut(mends=False)
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)

    def cut(self, *, mends: bool) -> None:
        """End all connections at once. ``mends``: whether the next ones go through."""

        async def cut() -> None:
            self._is_whole = mends
            for writer in self._writers:
                writer.transport.abort()
            self._writers.clear()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        self._started.set()
        await self._stopped.wait()
        server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_whole:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        self._writers += [writer, back]
        self.heads.append(b"")
        place = len(self.heads) - 1

        async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_head: bool) -> None:
            try:
                while data := await source.read(65536):
                    if is_head and len(self.heads[place]) < 8192:
                        self.heads[place] += data
                    sink.write(data)
                    await sink.drain()
            except ConnectionError:
                pass
            finally:
                sink.close()

        await asyncio.gather(
            forward(reader, back, is_head=True), forward(there, writer, is_head=False), return_exceptions=True
        )
