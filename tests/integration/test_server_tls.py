"""A server with a certificate of its own."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
from certificates import issued_for
from test_connections import App
from waiting import until

from sglang_omni.serve.launch.connections import ConnectionLimits
from sglang_omni.serve.launch.listening import tls_context
from sglang_omni.serve.launch.web_server import WebServer
from sglang_omni.supervision.ports import bind


async def test_https_beside_clients_that_speak_no_tls(tmp_path: Path) -> None:
    chain, key, trusting = issued_for("127.0.0.1", tmp_path)

    server = WebServer(App(), ConnectionLimits(head_s=1.0), tls=tls_context(chain, key))
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        # One says nothing, and one speaks plain HTTP.
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        plain, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        async with httpx.AsyncClient(verify=trusting, trust_env=False) as http:
            answers = [await http.post(f"https://127.0.0.1:{port}/", content=b"0123456789") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert b"0123456789" in answers[0].content
        async with asyncio.timeout(60):
            for reader in (plain, silent):
                with contextlib.suppress(ConnectionResetError):
                    assert b"HTTP" not in await reader.read()
        server.should_exit = True
        await serving
    await until(lambda: server.connections is not None and len(server.connections) == 0)
