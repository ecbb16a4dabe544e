"""A fleet's member, played by small programs: how it is started again."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from sglang_omni.serve import fleet
from sglang_omni.serve.processes import bind

# Is healthy once, and ends. All but the first take their time to load.
ONCE_HEALTHY = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
try:
    open(sys.argv[2], "x").close()
except FileExistsError:
    time.sleep(2)
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer.allow_reuse_address = True
HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).handle_request()
"""


async def test_a_member_that_ends_as_soon_as_it_is_up_waits_longer_each_time(monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(fleet, "_FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(fleet, "_SETTLED_S", 1.9)
    with bind("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        command = [sys.executable, "-c", ONCE_HEALTHY, str(port), str(tmp_path / "loaded")]
        member = fleet.Member("replica 0", command, f"http://127.0.0.1:{port}")
        running = asyncio.create_task(member.keep_running(60.0))
        async with asyncio.timeout(60):
            while len(caplog.messages) < 2:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        member.send_signal(signal.SIGKILL)
        await member.gone()
    waits = [message.rpartition("starting it again in ")[2] for message in caplog.messages[:2]]
    assert waits == ["0.01 s", "0.02 s"]
