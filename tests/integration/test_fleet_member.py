"""A fleet's member, played by small programs: how it is started again."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from waiting import until

from sglang_omni.serve.launch import member
from sglang_omni.supervision import restarts
from sglang_omni.supervision.ports import bind

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

# Answers for as long as it runs, with what is in a file.
SERVES = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from sglang_omni.supervision.exits import write_stacks_on_sigquit
write_stacks_on_sigquit()
class Health(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        status = open(sys.argv[2]).read()
        self.send_response(int(status))
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
ThreadingHTTPServer.allow_reuse_address = True
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


@asynccontextmanager
async def serving(folder: Path, **options: float) -> AsyncIterator[member.FleetMember]:
    """A member that is up; it is kept running until the end."""
    (folder / "status").write_text("200")
    with bind("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        command = [sys.executable, "-c", SERVES, str(port), str(folder / "status")]
        playing = member.FleetMember("replica 0", command, f"http://127.0.0.1:{port}", **options)
        running = asyncio.create_task(playing.keep_running(60.0))
        try:
            await until(playing.healthy.is_set)
            yield playing
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})
            playing.send_signal(signal.SIGKILL)
            await playing.gone()


async def test_a_member_that_is_stopped_is_replaced(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(member, "_LAST_PROBE_S", 1.0)
    monkeypatch.setattr(member, "_PROBE_S", 0.2)
    async with serving(tmp_path, heartbeat_timeout=3.0) as playing:
        first = playing.process.pid
        os.kill(first, signal.SIGSTOP)
        await until(lambda: playing.process.pid != first and playing.is_up)
    assert any("had not answered for 3 s" in message for message in caplog.messages)


async def test_a_member_that_hangs_leaves_its_stacks(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(member, "_LAST_PROBE_S", 1.0)
    monkeypatch.setattr(member, "_PROBE_S", 0.2)
    async with serving(tmp_path, heartbeat_timeout=3.0) as playing:
        first = playing.process.pid
        # It waits for a writer for ever, in the answer to the next question.
        (tmp_path / "status").unlink()
        os.mkfifo(tmp_path / "status")
        await until(lambda: playing.process.returncode is not None)
        (tmp_path / "status").unlink()
        (tmp_path / "status").write_text("200")
        await until(lambda: playing.process.pid != first and playing.is_up)
    assert "in do_GET" in capfd.readouterr().err


async def test_a_member_that_answers_that_it_is_unhealthy_is_kept(monkeypatch):
    """By the loop's clock, each answer comes later than a heartbeat may."""
    loop = asyncio.get_running_loop()
    on_time, later, answers = loop.time, 0.0, 0
    ended = loop.create_future()
    playing = member.FleetMember("replica 0", [], "http://replica")

    def unhealthy(_: httpx.Request) -> httpx.Response:
        nonlocal later, answers
        later += 2 * playing.heartbeat_timeout
        answers += 1
        if answers == 3:
            ended.set_result(0)
        return httpx.Response(503)

    monkeypatch.setattr(loop, "time", lambda: on_time() + later)
    monkeypatch.setattr(
        member, "_client", lambda: httpx.AsyncClient(transport=httpx.MockTransport(unhealthy))
    )
    monkeypatch.setattr(member, "_PROBE_S", 0.0)
    assert not await playing._until_silent(ended)
    assert answers == 3


async def test_no_descriptor_for_a_members_start_is_one_more_death(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(restarts, "FIRST_DELAY_S", 0.05)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(tmp_path) as playing:
        first = playing.process.pid
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            playing.send_signal(signal.SIGKILL)
            tried = "replica 0 could not be started: [Errno 24]"
            await until(lambda: sum(tried in message for message in caplog.messages) >= 2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: playing.process.pid != first and playing.is_up)


async def test_a_first_start_that_cannot_be_is_final():
    missing = member.FleetMember("router", ["/nowhere/to/be/found"], "http://127.0.0.1:1")
    with pytest.raises(member.MemberFailed, match=r"router could not be started: .*No such file"):
        await missing.keep_running(60.0)


async def test_another_program_that_answers_is_no_member(tmp_path):
    (tmp_path / "status").write_text("200")
    with bind("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        serves = [sys.executable, "-c", SERVES, str(port), str(tmp_path / "status")]
        stranger = await asyncio.create_subprocess_exec(*serves)
        try:
            # It cannot have its port, and ends.
            late = [sys.executable, "-c", f"import time\ntime.sleep(3)\n{SERVES}", *serves[3:]]
            playing = member.FleetMember("router", late, f"http://127.0.0.1:{port}")
            says = (
                rf"router .* exited with status 1: another program answers at http://127.0.0.1:{port}; give"
            )
            with pytest.raises(member.MemberFailed, match=says):
                await playing.keep_running(60.0)
        finally:
            stranger.kill()
            await stranger.wait()


async def test_a_member_that_ends_as_soon_as_it_is_up_waits_longer_each_time(monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(restarts, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(member, "_SETTLED_S", 1.9)
    with bind("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        command = [sys.executable, "-c", ONCE_HEALTHY, str(port), str(tmp_path / "loaded")]
        playing = member.FleetMember("replica 0", command, f"http://127.0.0.1:{port}")
        running = asyncio.create_task(playing.keep_running(60.0))
        await until(lambda: len(caplog.messages) >= 2)
        running.cancel()
        await asyncio.wait({running})
        playing.send_signal(signal.SIGKILL)
        await playing.gone()
    waits = [message.rpartition("starting it again in ")[2] for message in caplog.messages[:2]]
    assert waits == ["0.01 s", "0.02 s"]
