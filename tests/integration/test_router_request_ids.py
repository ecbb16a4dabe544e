"""`x-request-id`: taken from the client or made here, shown to the worker, returned to the client."""

from __future__ import annotations

import asyncio

import pytest
from router_harness import (
    Seen,
    connect,
    get,
    launched,
    post,
    read_body,
    read_head,
    replicas,
    response,
    router,
)


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


async def test_openais_header_counts_if_there_is_no_other() -> None:
    async with replicas(None) as [replica], router(replica) as url:
        for headers, expected in (
            ("X-Client-Request-Id: theirs\r\n", "theirs"),
            ("X-Client-Request-Id: theirs\r\nX-Request-Id: mine\r\n", "mine"),
            ("X-Client-Request-Id: theirs\r\nX-Request-Id: two words\r\n", "theirs"),
        ):
            assert (await post(url, headers=headers)).header("x-request-id") == expected
            assert replica.seen[-1].header("x-request-id") == expected


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
