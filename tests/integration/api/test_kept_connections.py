"""Connections that clients keep: nothing on them waits for the system to gather more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from scripted_pipeline import ScriptedPipeline

from sglang_omni.client import Client
from sglang_omni.serve import create_app
from sglang_omni.serve.launch.web_server import WebServer
from sglang_omni.supervision.ports import bind


@asynccontextmanager
async def served(host: str) -> AsyncIterator[tuple[WebServer, str]]:
    """The API as a replica serves it."""
    with bind(host, 0) as listener:
        listener.listen()
        app = create_app(Client(ScriptedPipeline()))
        server = WebServer(app)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        shown = f"[{host}]" if ":" in host else host
        yield server, f"http://{shown}:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_no_answer_waits_for_the_clients_acknowledgement(host: str) -> None:
    # A head and its body are two writes: without TCP_NODELAY the second waits until the client has
    # acknowledged the first, for 40 ms on a connection that is kept.
    async with served(host) as (server, url), httpx.AsyncClient(trust_env=False) as client:
        for _ in range(2):
            assert (await client.get(f"{url}/v1/models")).is_success
        [connection] = server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
