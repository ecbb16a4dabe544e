"""`python -m sglang_omni.launch_router` as a process: its options, start, end and its workers' restarts."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from router_harness import (
    COMMAND,
    Replica,
    Seen,
    asking,
    connect,
    get,
    launched,
    listed,
    post,
    read_body,
    read_head,
    replicas,
    response,
    router,
    until,
)
from waiting import PATIENCE

from sglang_omni._core import RouterServer
from sglang_omni.launch_router import build_parser
from sglang_omni.router import RouterConfig
from sglang_omni.router.flags import flag_names, options


def test_every_field_is_a_flag_and_only_given_ones_count() -> None:
    help_text = build_parser().format_help()
    for each, _ in options():
        assert all(f"--{name} " in help_text or f"--{name}\n" in help_text for name in flag_names(each))
    assert vars(build_parser().parse_args([])) == {}
    arguments = ["--worker-urls", "http://a:1", "http://b:2", "--max-payload-size", "7", "--policy=random"]
    parsed = vars(build_parser().parse_args(arguments))
    assert parsed == {
        "worker_urls": ["http://a:1", "http://b:2"],
        "max_body_bytes": 7,
        "policy": "random",
    }


def test_routers_own_defaults_are_the_classic_ones() -> None:
    classic = {
        "host": "127.0.0.1",
        "port": 30000,
        "policy": "cache_aware",
        "cache_threshold": 0.5,
        "balance_abs_threshold": 32,
        "balance_rel_threshold": 1.0001,
        "eviction_interval": 60,
        "max_tree_size": 16777216,
    }
    assert vars(RouterConfig()).items() >= classic.items()


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys, sglang_omni.launch_router as launch\n"
        "launch.build_parser().format_help()\n"
        "heavy = ('torch', 'pydantic', 'fastapi', 'prometheus_client', 'asyncio', 'numpy')\n"
        "print(*(name for name in heavy if name in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy", "fastest"], "'fastest' is none of random, round_robin, cache_aware"),
        (["--worker-urls", "10.0.0.1:8000"], "http://host:port"),
        (["--port", "99999"], "0 to 65535"),
        (["--cache-threshold", "1.5"], "between 0 and 1"),
        (["--balance-abs-threshold", "-1"], "0 or more"),
        (["--max-tree-size", "0"], "bytes of memory per worker"),
        (["--workers-file", "/nowhere/workers"], "workers_file: /nowhere/workers cannot be read"),
        (["--worker-dns", "replicas"], "NAME:PORT"),
        (["--worker-dns", "a:1", "--dns-interval", "0"], "dns_interval"),
    ],
)
def test_wrong_options_say_what_is_right(options: list[str], words: str) -> None:
    ran = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_port_in_use_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(
            [*COMMAND, "--port", port], capture_output=True, text=True, timeout=60, check=False
        )
    assert ran.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in ran.stderr


async def test_two_routers_do_not_share_a_port() -> None:
    async with router() as url:
        port = url.rsplit(":", 1)[1]
        ran = await asyncio.to_thread(
            subprocess.run, [*COMMAND, "--port", port], capture_output=True, text=True
        )
        assert (ran.returncode, "is in use" in ran.stderr) == (1, True)


async def test_serves_requests_as_configured() -> None:
    async with (
        replicas(None, None) as both,
        launched("--worker-urls", *(replica.url for replica in both), "--policy", "random") as (_, url),
    ):
        assert (await post(url)).status == 200
        listed = json.loads((await get(url, "/workers")).body)
        assert [worker["url"] for worker in listed["workers"]] == [replica.url for replica in both]
        assert listed["policy"] == "random"


async def test_sigterm_finishes_what_is_in_flight() -> None:
    asked, finish = asyncio.Event(), asyncio.Event()

    async def handler(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        asked.set()
        await finish.wait()
        writer.write(b"4\r\nlast\r\n0\r\n\r\n")

    async with replicas(handler) as [replica], launched("--worker-urls", replica.url) as (process, url):
        running = asyncio.ensure_future(post_chunked(url))
        idle = await connect(url)
        idle[1].write(b"GET /workers HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _, headers = await read_head(idle[0])
        await read_body(idle[0], headers)
        await asked.wait()
        process.send_signal(signal.SIGTERM)
        # No more connections are taken; the one that was idle is closed.
        assert await idle[0].read() == b""
        await until(lambda: refused(url), "connections are refused")
        finish.set()
        assert (await running).endswith(b"4\r\nlast\r\n0\r\n\r\n")
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
        idle[1].close()


async def refused(url: str) -> bool:
    try:
        (await connect(url))[1].close()
    except ConnectionError:
        return True
    return False


async def post_chunked(url: str) -> bytes:
    reader, writer = await asking(url, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    "signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]], ids=["int", "term twice"]
)
async def test_open_streams_do_not_hold_up_the_end(signals: list[signal.Signals]) -> None:
    async def endless(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await asyncio.Event().wait()

    async with replicas(endless) as [replica], launched("--worker-urls", replica.url) as (process, url):
        streams = [await connect(url) for _ in range(5)]
        for reader, writer in streams:
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            await read_head(reader)
        for number in signals:
            process.send_signal(number)
            await until(lambda: refused(url), "the signal has been acted on")
        # Half of what the streams would be waited for.
        assert await asyncio.wait_for(process.wait(), RouterConfig().drain_timeout / 2) == 0
        for reader, writer in streams:
            await reader.read()
            writer.close()
        assert len(replica.seen) == 5


async def test_requests_that_no_one_has_accepted_yet_when_the_router_drains_are_answered() -> None:
    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    async with replicas(None) as [replica], launched("--worker-urls", replica.url) as (process, url):
        assert (await post(url)).status == 200
        process.send_signal(signal.SIGSTOP)
        try:
            connections = [await connect(url) for _ in range(300)]
            for _, writer in connections:
                writer.write(request)
            process.send_signal(signal.SIGTERM)
        finally:
            process.send_signal(signal.SIGCONT)
        for reader, writer in connections:
            line, headers = await read_head(reader)
            assert line == "HTTP/1.1 200 OK"
            await read_body(reader, headers)
            writer.close()
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


async def test_a_request_on_its_way_when_the_router_drains_is_answered() -> None:
    async with replicas(None) as [replica]:
        server = RouterServer(json.dumps(vars(RouterConfig(worker_urls=[replica.url], port=0, threads=1))))
        try:
            connections = [await connect(server.url) for _ in range(20)]
            ask = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
            for reader, writer in connections:
                writer.write(ask)
                await read_body(reader, (await read_head(reader))[1])
            server.drain()
            for reader, writer in connections:
                writer.write(ask)
                line, headers = await read_head(reader)
                assert line == "HTTP/1.1 200 OK"
                assert ("connection", "close") in headers
                writer.close()
            assert await asyncio.to_thread(server.wait, PATIENCE)
        finally:
            server.stop()


async def test_health_checks_that_lack_descriptors_say_nothing_of_the_worker() -> None:
    async with (
        replicas(None) as [replica],
        launched("--worker-urls", replica.url, "--probe-interval", "0.05") as (process, url),
    ):
        reader, writer = await connect(url)

        async def state() -> str:
            writer.write(b"GET /workers HTTP/1.1\r\nHost: localhost\r\n\r\n")
            _, headers = await read_head(reader)
            [worker] = json.loads(await read_body(reader, headers))["workers"]
            return worker["state"]

        async def is_up() -> bool:
            return await state() == "up"

        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)

        async def is_starved() -> bool:
            # Each time anew: a health check that runs meanwhile leaves its descriptor to the next.
            taken = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
            none_free = next(number for number in itertools.count() if number not in taken)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (none_free, hard))
            # Twenty times as long as between two health checks, there is none.
            before = replica.probes
            await asyncio.sleep(1)
            return replica.probes == before

        await until(is_up, "the worker is up")
        await until(is_starved, "no health check gets through")
        assert await state() == "up"
        writer.close()


TEXT = (Path(__file__).parents[2] / "docs" / "router.md").read_text()


def recipe(url: str, workers: list[Replica]) -> str:
    """The recipe's commands, for these workers. Their `restart` says which one and waits for an answer."""
    [script] = re.findall(r"```bash\n(for worker.*?)```", TEXT, re.S)
    script = re.sub(r"for worker in .*; do", f"for worker in {' '.join(w.url for w in workers)}; do", script)
    assert "http://127.0.0.1:30000" in script
    script = script.replace("http://127.0.0.1:30000", url)
    # curl ends its output without a new line.
    return f"set -e\nrestart() {{ echo; echo restart $1; read answer; }}\n{script}"


async def test_workers_are_restarted_one_by_one_without_a_failed_request() -> None:
    async def slow(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(response())

    async with replicas(slow, slow) as both, router(*both) as url:
        script = await asyncio.create_subprocess_exec(
            *("bash", "-c", recipe(url, both)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert script.stdin is not None
        assert script.stdout is not None
        ended = asyncio.Event()

        async def load() -> list[int]:
            statuses = []
            while not ended.is_set():
                statuses.append((await post(url)).status)
            return statuses

        clients = [asyncio.ensure_future(load()) for _ in range(4)]
        restarted = []
        while line := await asyncio.wait_for(script.stdout.readline(), PATIENCE):
            if not line.startswith(b"restart "):
                continue
            [worker] = [replica for replica in both if replica.url == line.split()[1].decode()]
            restarted.append(worker)
            # The drain has waited for its requests: no client is cut off.
            [state] = [entry for entry in await listed(url) if entry["url"] == worker.url]
            assert (state["draining"], state["load"]) == (True, 0)
            await worker.stop()
            await worker.start()
            script.stdin.write(b"\n")
        assert await script.wait() == 0
        ended.set()
        statuses = [status for client in clients for status in await client]
        assert restarted == both
        assert set(statuses) == {200}
        assert [worker["draining"] for worker in await listed(url)] == [False, False]


SOAK = Path(__file__).resolve().parent.parent / "soak/router_soak.py"


@pytest.mark.long
def test_under_mixed_traffic_nothing_is_lost_and_nothing_leaks() -> None:
    ran = subprocess.run(
        [sys.executable, SOAK, "--minutes", "0.2"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
