"""What a router process writes to standard error, and the ids by which its requests are found there."""

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
    Seen,
    asking,
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
from waiting import PATIENCE


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


async def test_lines_below_the_level_are_left_out() -> None:
    async def check(level: str) -> None:
        async with replicas(None) as [replica]:
            command = [*COMMAND, "--port=0", f"--log-level={level}", "--access-log", "--log-format=json"]
            process = await asyncio.create_subprocess_exec(
                *command, "--worker-urls", replica.url, stderr=asyncio.subprocess.PIPE
            )

            async with ending(process):
                await until(lambda: replica.probes > 1, "the router asks its worker")
                await replica.stop()
                expected = [] if level == "error" else ["worker is down"]
                assert process.stderr is not None
                lines = [json.loads(await process.stderr.readline())["msg"] for _ in expected]
                assert lines == expected
                assert await ended(process) == b""

    await asyncio.gather(*map(check, ("warn", "warning", "error")))


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
                    reader, writer = await asking(url, 500 * ask)
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


async def test_an_id_is_made_forwarded_and_returned() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        returned = [(await post(url)).header("x-request-id") for _ in range(50)]
    assert [seen.header("x-request-id") for seen in replica.seen] == returned
    assert len(set(returned)) == 50
    assert all(id is not None and len(id) == 28 and id.isalnum() for id in returned)


async def test_ids_of_one_connection_differ() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        reader, writer = await connect(url)
        for _ in range(200):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            _, headers = await read_head(reader)
            await read_body(reader, headers)
        writer.close()
    assert len({seen.header("x-request-id") for seen in replica.seen}) == 200


@pytest.mark.parametrize("given", ["abc", "x" * 128, "cmpl-{1}/~!\"'"])
async def test_the_clients_id_is_kept(given: str) -> None:
    async with replicas(None) as [replica], router(replica) as url:
        assert (await post(url, headers=f"X-Request-ID: {given}\r\n")).header("x-request-id") == given
    assert [value for name, value in replica.seen[0].headers if name.lower() == "x-request-id"] == [given]


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "caf\u00e9"])
async def test_an_id_nobody_should_log_is_replaced(given: str) -> None:
    async with replicas(None) as [replica], router(replica) as url:
        returned = (await post(url, headers=f"X-Request-ID: {given}\r\n")).header("x-request-id")
    assert returned is not None
    assert len(returned) == 28
    assert [value for name, value in replica.seen[0].headers if name.lower() == "x-request-id"] == [returned]


async def test_other_headers_may_carry_it() -> None:
    names = ["x-trace-id", "x-correlation-id"]
    async with replicas(None) as [replica], router(replica, request_id_headers=names) as url:
        for headers, expected in (
            ("X-Correlation-Id: c\r\nX-Trace-Id: t\r\nX-Request-Id: r\r\n", "t"),
            ("X-Correlation-Id: c\r\nX-Request-Id: r\r\n", "c"),
            ("X-Correlation-Id: two words\r\nX-Request-Id: r\r\n", "r"),
            # OpenAI's counts if there is no other.
            ("X-Client-Request-Id: theirs\r\n", "theirs"),
            ("X-Client-Request-Id: theirs\r\nX-Request-Id: mine\r\n", "mine"),
            ("X-Client-Request-Id: theirs\r\nX-Request-Id: two words\r\n", "theirs"),
        ):
            assert (await post(url, headers=headers)).header("x-request-id") == expected
            assert replica.seen[-1].header("x-request-id") == expected
    assert replica.seen[0].header("x-correlation-id") == "c"


async def test_a_worker_that_answers_with_another_id_does_not_hide_the_routers() -> None:
    async def other(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(headers="x-request-id: its-own\r\n"))

    async with replicas(other) as [replica], router(replica) as url:
        answer = await post(url, headers="x-request-id: mine\r\n")
    assert [value for name, value in answer.headers if name == "x-request-id"] == ["mine"]


async def test_the_routers_own_answers_have_one_too() -> None:
    async with router(api_key=["k"]) as url:
        for answer in (
            await get(url, "/health"),
            await post(url, headers="x-request-id: mine\r\n"),
            await post(url, headers="Authorization: Bearer k\r\n"),
        ):
            assert answer.header("x-request-id")
        assert [answer.status, answer.header("x-request-id")] == [503, answer.header("x-request-id")]


@pytest.mark.parametrize(
    ("given", "answered", "shown"),
    [
        # The worker knows the request by what its body says, and the client named none elsewhere.
        ("", "chosen", "chosen"),
        # The client gave several requests one id, and the worker tells them apart.
        ("x-request-id: mine\r\n", "mine-1a2b3c4d", "mine-1a2b3c4d"),
        ("x-request-id: mine\r\n", "mine2", "mine"),
    ],
)
async def test_an_id_that_a_worker_settles_on_is_in_answer_and_log(
    given: str, answered: str, shown: str
) -> None:
    async def other(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(response(headers=f"x-request-id: {answered}\r\n"))

    async with (
        replicas(other) as [replica],
        launched("--worker-urls", replica.url, "--access-log") as (process, url),
    ):
        assert (await post(url, headers=given)).header("x-request-id") == shown
        assert process.stderr is not None
        while b" request " not in (line := await process.stderr.readline()):
            assert line
        assert f" id={shown} ".encode() in line


async def test_what_asks_every_worker_names_itself_to_them() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        await post(url, path="/abort_request", headers="x-request-id: mine\r\n")
    assert replica.seen[-1].header("x-request-id") == "mine"


async def test_what_failed_is_logged_with_its_id() -> None:
    async with launched("--worker-urls", "http://127.0.0.1:1") as (process, url):
        assert (await post(url, headers="x-request-id: mine\r\n")).status == 503
        assert process.stderr is not None
        while b"request failed" not in (line := await process.stderr.readline()):
            assert line
        for words in (b"WARN", b"id=mine", b"status=503", b"127.0.0.1:1: Connection refused"):
            assert words in line


async def test_an_answer_that_a_worker_cuts_is_logged_with_its_id() -> None:
    async def cut(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        await writer.drain()
        writer.transport.abort()

    async with (
        replicas(cut) as [replica],
        launched("--worker-urls", replica.url) as (process, url),
    ):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await post(url, headers="x-request-id: mine\r\n")
        assert process.stderr is not None
        while b"request failed" not in (line := await process.stderr.readline()):
            assert line
        assert b"id=mine" in line
        assert b"broke off" in line
