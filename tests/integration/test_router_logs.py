"""What a router process writes to standard error, as text and as JSON, and that nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from datetime import UTC, datetime
from typing import Any

import pytest
from router_harness import (
    COMMAND,
    PATIENCE,
    Seen,
    change,
    connect,
    ending,
    get,
    launched,
    metric,
    post,
    read_body,
    read_head,
    replicas,
    response,
    router,
    until,
)


async def lines_until(process: asyncio.subprocess.Process, message: str) -> list[dict[str, Any]]:
    """The JSON lines up to the first one with this message."""
    assert process.stderr is not None
    lines: list[dict[str, Any]] = []
    while not lines or message not in lines[-1]["msg"]:
        line = await asyncio.wait_for(process.stderr.readline(), PATIENCE)
        assert line, f"the router ended without {message!r}: {lines}"
        lines.append(json.loads(line))
    return lines


async def ended(process: asyncio.subprocess.Process) -> bytes:
    """Ends it; what it had still to say."""
    process.send_signal(signal.SIGTERM)
    _, rest = await asyncio.wait_for(process.communicate(), PATIENCE)
    return rest


async def test_state_changes_as_json() -> None:
    async with replicas(None) as [replica]:
        before = datetime.now(UTC)
        async with launched("--log-format=json", "--worker-urls", replica.url) as (process, url):
            [up] = await lines_until(process, "worker is up")
            assert (up["level"], up["worker"]) == ("info", replica.url)
            at = datetime.fromisoformat(up["ts"])
            assert at.tzinfo is not None
            assert abs((at - before).total_seconds()) < PATIENCE
            await replica.stop()
            *_, down = await lines_until(process, "worker is down")
            assert (down["level"], down["worker"]) == ("warn", replica.url)
            assert "refused" in down["why"]
            assert url.startswith("http://127.0.0.1:")


async def test_what_is_done_to_workers_and_to_the_router() -> None:
    async with replicas(None) as [replica], launched("--log-format=json") as (process, url):
        for method, path, event in (
            ("POST", "/workers", "worker was added"),
            ("POST", "/workers/drain", "worker is draining"),
            ("POST", "/workers", "worker serves again"),
            ("DELETE", "/workers", "worker was removed"),
        ):
            assert (await change(url, method, path, {"url": replica.url})).status in (200, 201)
            *_, line = await lines_until(process, event)
            assert line["worker"] == replica.url
        last = json.loads((await ended(process)).splitlines()[-1])
        assert (last["msg"], last["in_flight"]) == ("shutting down", "0")


async def test_text_is_a_line_an_event() -> None:
    async with replicas(None) as [replica], launched("--worker-urls", replica.url) as (process, _):
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stderr.readline(), PATIENCE)).decode()
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z INFO  worker is up worker={replica.url}\n", line
    )


async def test_requests_are_logged_where_that_is_asked_for() -> None:
    async def by_path(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"hello", status="404 None" if "none" in seen.line else "200 OK"))

    async with (
        replicas(by_path) as [replica],
        launched("--log-format=json", "--access-log", "--worker-urls", replica.url) as (process, url),
    ):
        await post(url, b'{"secret": 1}', path="/v1/completions?key=secret", headers="x-request-id: one\r\n")
        await get(url, "/none")
        await get(url, "/health")
        await get(url, "/metrics")
        await post(url, path="/workers")
        rest = await ended(process)
    assert b"secret" not in rest
    first, second, third = [
        line for line in map(json.loads, rest.decode().splitlines()) if line["msg"] == "request"
    ]
    assert first["first_byte_ms"] <= first["duration_ms"]
    ip, _, port = first.pop("client").rpartition(":")
    assert (ip, port.isdigit()) == ("127.0.0.1", True)
    assert first == first | {
        "level": "info",
        "id": "one",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "worker": replica.url,
        "attempts": 1,
        "bytes_in": 13,
        "bytes_out": 5,
        "end": "complete",
    }
    assert (second["method"], second["path"], second["status"]) == ("GET", "/none", 404)
    assert (third["path"], third["status"], third["worker"]) == ("/workers", 400, None)
    assert (third["attempts"], third["first_byte_ms"]) == (0, None)


async def test_another_attempt_shows() -> None:
    async with replicas(None) as [replica]:
        options = ["--log-format=json", "--access-log", "--policy=round_robin"]
        refused = "http://127.0.0.1:1"
        async with launched(*options, "--worker-urls", refused, replica.url) as (process, url):
            answers = [await post(url) for _ in range(3)]
            assert {answer.status for answer in answers} == {200}
            rest = await ended(process)
    requests = [line for line in map(json.loads, rest.decode().splitlines()) if line["msg"] == "request"]
    assert {line["worker"] for line in requests} == {replica.url}
    assert [line["id"] for line in requests] == [answer.header("x-request-id") for answer in answers]


@pytest.mark.parametrize("level", ["warn", "warning", "error"])
async def test_lines_below_the_level_are_left_out(level: str) -> None:
    async with replicas(None) as [replica]:
        command = [*COMMAND, "--port=0", f"--log-level={level}", "--access-log", "--log-format=json"]
        process = await asyncio.create_subprocess_exec(
            *command, "--worker-urls", replica.url, stderr=asyncio.subprocess.PIPE
        )

        async with ending(process):

            async def probed() -> bool:
                return replica.probes > 1

            await until(probed, "the router asks its worker")
            await replica.stop()
            expected = [] if level == "error" else ["worker is down"]
            assert process.stderr is not None
            lines = [json.loads(await process.stderr.readline())["msg"] for _ in expected]
            assert lines == expected
            assert await ended(process) == b""


async def test_a_reader_that_sleeps_holds_nobody_up() -> None:
    read, write = os.pipe()
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, bytes(4096))
    os.set_blocking(full, True)
    async with replicas(None) as [replica]:
        command = [*COMMAND, "--port=0", "--access-log", "--worker-urls", replica.url]
        process = await asyncio.create_subprocess_exec(*command, stdout=full, stderr=write)
        os.close(write)
        try:
            async with ending(process):
                said = b""
                while not (found := re.search(rb"listening on (\S+)\n", said)):
                    said += await asyncio.to_thread(os.read, read, 4096)
                url = found[1].decode()
                # The pipe holds 64 KiB, the queue 4096 lines; this makes far more.
                ask = b"GET /workers/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 2000)

                async def dropped() -> bool:
                    reader, writer = await connect(url)
                    writer.write(500 * ask)
                    for _ in range(500):
                        _, headers = await read_head(reader)
                        await read_body(reader, headers)
                    writer.close()
                    return await metric(url, "log_lines_dropped_total") > 0

                await until(dropped, "lines are dropped")
                assert (await post(url)).status == 200
                process.send_signal(signal.SIGTERM)
                # It ends although the last lines cannot be written.
                assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
        finally:
            for end in (read, unread, full):
                os.close(end)


@pytest.mark.parametrize("wrong", [{"log_level": "loud"}, {"log_format": "xml"}])
async def test_wrong_options(wrong: dict[str, str]) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises(ValueError, match=f"{name}: unknown variant `{value}`, expected"):
        async with router(**wrong):
            pass
